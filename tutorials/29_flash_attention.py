"""29  Flash attention: tiles, forward and backward.       75 minutes, needs: 03, 22

Here attention does not store the L x L scores in memory. The result is the same, with fewer bytes
moved.

    python tutorials/29_flash_attention.py       one process; picture: out/29_flash_attention.png

1. Attention has L queries and L keys, and each is a row of E numbers. S is the matrix of the
scores, and P is the softmax of each row of S:

    S = Q K^T / sqrt(E)        P = softmax(S)        O = P V

Three operations write S and P to memory and read them again. So they move

    4 L^2 + 4 L E numbers        S and P, each written and read; Q, K, V read and O written

Usually E is 64 or 128 and L is some thousands, so nearly all of these numbers are in S and P. To
move them takes longer than the arithmetic.

2. Tiles. Hold some rows of Q in fast memory. Fetch the rows of K and V for some keys at a time.
With each of these parts, compute a part of S: this is a tile. It is stored only until the next tile
comes. The softmax of a row needs two numbers over all keys: the largest score m, and the sum l of
e^(s - m). m, l and the sum o for the output are updated with each tile. If the tile has a larger
score, the new m' is larger than m. Then the old sums are scaled down (online softmax,
exercise 29a):

    m' = max(m, largest of the tile)      l' = e^(m - m') l + sum of e^(s - m')
                                          o' = e^(m - m') o + e^(s - m') V_tile

After the last tile O = o / l. lse = m + log(l) is stored for backward. With R rows of Q at a time,
K and V are read ceil(L / R) times. The numbers moved are

    2 L E + L + 2 L E ceil(L / R)        Q read, O and lse written; K and V read

For large L this is E / (2 R) of the numbers that the three operations move. With a causal mask,
tiles above the diagonal are not computed.

3. Backward computes each tile of P again: P = e^(S - lse). dO is the gradient of the loss with
respect to O:

    dV = P^T dO                 dP = dO V^T                 dS = P * (dP - D)
    dQ = dS K / sqrt(E)         dK = dS^T Q / sqrt(E)

The derivative of softmax needs D_i = sum over all keys j of P_ij dP_ij. A tile has only some of the
keys. But D_i can be computed without the other keys, from dO and O (exercise 29b):

    D_i = sum_j P_ij sum_c dO_ic V_jc = sum_c dO_ic sum_j P_ij V_jc = sum_c dO_ic O_ic

4. On a GPU each thread of a block has one row of Q. The threads share the keys and values that the
block has fetched (exercise 29c). The numbers that the kernel loads and stores are counted. They are
equal to the formula of part 2.

The plain pages: minidl/plain/attention.py, flash.py. minidl's own code: minidl/ops/attention.py,
kernels/attention.cu. Papers: Dao et al. 2022, FlashAttention (arXiv 2205.14135); Dao 2023 (arXiv
2307.08691); Milakov & Gimelshein 2018 (arXiv 1805.02867; online softmax).
Exercises: `minidl exercise 29` writes work/29_flash_attention.py, `minidl check 29` grades it.
"""

import tempfile
import time
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.course.out import BLUE, GREY, ORANGE, RED
from minidl.course.tutorial import Table, host, launch, picture, put, say
from minidl.nn import functional as F
from minidl.plain import attention as plain
from minidl.plain import autograd, flash

ROWS, KEYS, WIDTH = 16, 8, 8  # of the kernel: rows of Q in a block, keys in a tile, E


def add_tile(m, total, o, s, v):
    """Returns (m, total, o) after one more tile. m (R, 1), total (R, 1) and o (R, E) are the
    results after the earlier tiles: -inf, 0 and 0 at first. total is the sum l of part 2. s (R, n):
    the scores of the tile. v (n, E): the values of its keys."""
    # >>> exercise 29a: the running sum of online softmax
    # In each row, the new m is the larger one of the old m and the tile's largest score (use
    # keepdims=True). total and o are sums with e^(s - old m), so multiply total and o by
    # e^(old m - new m). This is 0 for the first tile, because then the old m is -inf. Let p be
    # e^(s - new m). Add the sum of p over the keys to total, and p @ v to o. Where a key is masked,
    # its score is -inf. Do not divide by total here: this is done after the last tile.
    new_m = np.maximum(m, s.max(axis=1, keepdims=True))
    shrink = np.exp(m - new_m)
    p = np.exp(s - new_m)
    return new_m, shrink * total + p.sum(axis=1, keepdims=True), shrink * o + p @ v
    # <<<


def tile_gradients(s, q, k, v, o, lse, go):
    """Returns (gq, gk, gv): what the tile of scores s (R, n) adds to the gradients of q, k and v.
    q, o, go (R, E) and lse (R, 1) belong to the R queries of the tile. go is the gradient of o. o
    and lse are the final results, from all keys. k and v (n, E) belong to the n keys of the
    tile."""
    # >>> exercise 29b: the gradient of softmax, from a tile
    # s is q k^T / sqrt(E), with -inf where a key is masked. P = e^(s - lse) is this tile of the
    # softmax over all keys. gV = P^T gO, and gP = gO V^T. D (R, 1) is the sum of gO * O over a row.
    # It is equal to the sum of P * gP over all keys, although the tile has only some of the keys.
    # Then gS = P * (gP - D), gQ = gS K / sqrt(E) and gK = gS^T Q / sqrt(E).
    scale = q.shape[1] ** -0.5
    p = np.exp(s - lse)
    d = (go * o).sum(axis=1, keepdims=True)
    gs = p * (go @ v.T - d)
    return gs @ k * scale, gs.T @ q * scale, p.T @ go
    # <<<


class Memory:
    """The large, slow memory. n_bytes counts the bytes that are read from it and written to it."""

    def __init__(self):
        self.n_bytes = 0

    def read(self, x, rows):
        self.n_bytes += x[rows].nbytes
        return x[rows].copy()

    def write(self, x, rows, tile):
        self.n_bytes += x[rows].nbytes
        x[rows] = tile


def parts(n, size):
    """Returns slices of length `size` that cover n rows. The last slice may be shorter."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def scores(q, k, rows, keys, causal):
    """Returns the tile S[rows, keys]. q and k: these rows of Q and K. causal: if True, scores of
    keys after the query are -inf."""
    s = q @ k.T * q.shape[1] ** -0.5
    if causal:
        s[np.arange(rows.start, rows.stop)[:, None] < np.arange(keys.start, keys.stop)] = -np.inf
    return s


def visible(rows, keys, causal):
    """Returns False if the tile is above the diagonal, so that the causal mask hides all of it."""
    return not causal or keys.start < rows.stop


def forward(memory, q, k, v, n_rows, n_keys, causal=False):
    """Returns (o (L, E), lse (L, 1)). Fast memory holds n_rows rows of q and o, and n_keys rows of
    k and v."""
    out, lse = np.empty_like(q), np.empty_like(q[:, :1])
    for rows in parts(len(q), n_rows):
        q_tile = memory.read(q, rows)
        m = np.full_like(q_tile[:, :1], -np.inf)
        total, o = np.zeros_like(m), np.zeros_like(q_tile)
        for keys in parts(len(k), n_keys):
            if visible(rows, keys, causal):
                s = scores(q_tile, memory.read(k, keys), rows, keys, causal)
                m, total, o = add_tile(m, total, o, s, memory.read(v, keys))
        memory.write(out, rows, o / total)
        memory.write(lse, rows, m + np.log(total))
    return out, lse


def backward(memory, go, q, k, v, o, lse, n_rows, n_keys, causal=False):
    """Returns (gq, gk, gv). n_keys keys stay in fast memory while all queries are read, n_rows at a
    time."""
    gq, gk, gv = np.zeros_like(q), np.empty_like(k), np.empty_like(v)
    for keys in parts(len(k), n_keys):
        k_tile, v_tile = memory.read(k, keys), memory.read(v, keys)
        gk_tile, gv_tile = np.zeros_like(k_tile), np.zeros_like(v_tile)
        for rows in parts(len(q), n_rows):
            if visible(rows, keys, causal):
                q_tile, o_tile, lse_tile, go_tile = (
                    memory.read(x, rows) for x in (q, o, lse, go))
                s = scores(q_tile, k_tile, rows, keys, causal)
                grads = tile_gradients(s, q_tile, k_tile, v_tile, o_tile, lse_tile, go_tile)
                memory.write(gq, rows, memory.read(gq, rows) + grads[0])
                gk_tile += grads[1]
                gv_tile += grads[2]
        memory.write(gk, keys, gk_tile)
        memory.write(gv, keys, gv_tile)
    return gq, gk, gv


def bytes_by_three(length, width, itemsize=4):
    """Returns the bytes that the three operations of part 1 move: 4 L^2 + 4 L E numbers."""
    return itemsize * (4 * length**2 + 4 * length * width)


def bytes_by_forward(length, width, n_rows, n_keys, causal=False, itemsize=4):
    """Returns the bytes that forward moves in tiles. q, o and lse are 2 L E + L numbers. In
    addition 2 E numbers are read each time that a key and its value are fetched. Without a mask all
    L keys are fetched ceil(L / n_rows) times."""
    fetched = sum(keys.stop - keys.start for rows in parts(length, n_rows)
                  for keys in parts(length, n_keys) if visible(rows, keys, causal))
    return itemsize * (2 * length * width + length + 2 * width * fetched)


def bytes_by_backward(length, width, n_rows, n_keys, causal=False, itemsize=4):
    """Returns the bytes that backward moves in tiles. k and v are read once, and gk and gv are
    written once: 4 L E numbers. Each time that a query is used for some keys, 5 E + 1 numbers are
    moved: q, o, lse and go are read, and gq is read and written. Without a mask this happens
    ceil(L / n_keys) times for each query."""
    passed = sum(rows.stop - rows.start for keys in parts(length, n_keys)
                 for rows in parts(length, n_rows) if visible(rows, keys, causal))
    return itemsize * (4 * length * width + (5 * width + 1) * passed)


def problem(length, width):
    """Returns q, k, v and go, each (length, width), float64. The scores have a standard deviation
    of 3."""
    q, k, v, go = minidl.Generator(29).normal(4, length, width).astype(float)
    return 3 * q, k, v, go


def plainly(q, k, v, go, causal):
    """Returns (o, gq, gk, gv) by the plain page attention.py, which stores all scores."""
    leaves = [autograd.Tensor(x) for x in (q, k, v)]
    if causal:
        o = plain.attention(*leaves)
    else:
        o = plain.softmax(leaves[0] @ leaves[1].swap() * q.shape[1] ** -0.5) @ leaves[2]
    return [o.array, *(g.array for g in autograd.grad((o * go).sum(), leaves))]


def by_op(args, q, k, v, go, causal):
    """Returns [o, gq, gk, gv] by minidl's attention."""
    query, key, value = (minidl.Tensor(put(args, x[None, None]), requires_grad=True)
                         for x in (q, k, v))
    o = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    o.backward(minidl.Tensor(put(args, go[None, None])))
    return [host(x)[0, 0] for x in (o, query.grad, key.grad, value.grad)]


def apart(found, wanted):
    """Returns the largest difference between the numbers of two lists of arrays."""
    return max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))


def in_tiles(args, table):
    """Parts 2 and 3: checks the results and gradients in tiles, and the bytes that are moved."""
    length, width = args.length, args.width
    sizes = args.rows, args.keys
    q, k, v, go = problem(length, width)
    for causal, name in ((False, "all keys"), (True, "causal")):
        memory, memory_back = Memory(), Memory()
        o, lse = forward(memory, q, k, v, *sizes, causal)
        grads = backward(memory_back, go, q, k, v, o, lse, *sizes, causal)
        wanted = plainly(q, k, v, go, causal)
        # the bound is for float64 sums of L products in a different order
        table.row(f"29a, {name}: O, difference from the plain page",
                  apart([o], wanted[:1]), 0.0, "abs<1e-11")
        table.row(f"29b, {name}: gradients, difference from the plain page",
                  apart(grads, wanted[1:]), 0.0, "abs<1e-10")
        found = by_op(args, q, k, v, go, causal)
        table.row(f"{name}: O and gradients, difference from minidl's op",
                  apart([o, *grads], found), 0.0, "abs<1e-10")
        theory = bytes_by_forward(length, width, *sizes, causal, q.itemsize)
        table.row(f"{name}: bytes moved by forward", memory.n_bytes, theory, "exact")
        theory = bytes_by_backward(length, width, *sizes, causal, q.itemsize)
        table.row(f"{name}: bytes moved by backward", memory_back.n_bytes, theory, "exact")
        if not causal:
            page, page_lse = flash.forward(q, k, v, args.keys)
            page_grads = flash.backward(go, q, k, v, page, page_lse, args.keys)
            table.row("O and gradients, difference from the page flash",
                      apart([o, *grads], [page, *page_grads]), 0.0, "abs<1e-10")
            closed = length * width * (2 + 2 * -(-length // args.rows)) + length
            table.row("... 2 L E + L + 2 L E ceil(L / R) numbers", memory.n_bytes // q.itemsize,
                      closed, "exact")

    # D is computed from all keys, from O, and from the first tile of keys. The third D is wrong.
    p = np.exp(q @ k.T * width**-0.5 - lse_of(q, k))
    gp = go @ v.T
    of_all = (p * gp).sum(axis=1)
    of_output = (go * (p @ v)).sum(axis=1)
    of_tile = (p * gp)[:, : args.keys].sum(axis=1)
    table.row("D from O, difference from D from all keys",
              np.abs(of_output - of_all).max(), 0.0, "abs<1e-11")
    table.row("D from the first tile, difference from D from all keys",
              np.abs(of_tile - of_all).max())


def lse_of(q, k):
    """Returns the log of the sum of e^score over all keys, (L, 1)."""
    s = q @ k.T * q.shape[1] ** -0.5
    top = s.max(axis=1, keepdims=True)
    return top + np.log(np.exp(s - top).sum(axis=1, keepdims=True))


def traffic(args, table):
    """Part 1: counts the bytes that three operations of minidl move, and the bytes that forward
    moves in tiles. Returns {L: (bytes of three operations, bytes in tiles)}, for float32."""
    width, moved = args.width, {}
    for length in (64, 128, 256, 512):
        q, k, v = (x.astype(np.float32) for x in problem(length, width)[:3])
        tensors = [put(args, minidl.Tensor(x)) for x in (q, k, v)]
        with minidl.profile() as run, minidl.no_grad():
            three_operations(*tensors)
        n_bytes = sum(operator["bytes"] for operator in run.summary["operators"]
                      if operator["name"] in ("matmul", "softmax"))
        table.row(f"L = {length}: bytes moved by three operations", int(n_bytes),
                  bytes_by_three(length, width), "exact")
        memory = Memory()
        forward(memory, q, k, v, args.rows, args.keys)
        moved[length] = int(n_bytes), memory.n_bytes
    table.row("L = 512: part of it that tiles move; E / (2 R)", moved[512][1] / moved[512][0],
              width / (2 * args.rows))
    for name, run in (("three operations", three_operations), ("minidl's op", one_operation)):
        x = [put(args, minidl.Tensor(np.float32(x))) for x in problem(1024, 64)[:3]]
        with minidl.no_grad():
            run(*x)
            start = time.perf_counter()
            host(run(*x))
        table.row(f"ms, L = 1024, E = 64, {name}", 1e3 * (time.perf_counter() - start))
    return moved


def three_operations(q, k, v):
    """Returns attention by the three operations of part 1. 1 / sqrt(E) multiplies q, because q has
    fewer numbers than the scores."""
    return F.softmax(q * q.shape[1] ** -0.5 @ k.T, -1) @ v


def one_operation(q, k, v):
    return F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])


KERNEL = """
// Computes o (n_queries, E) and lse (n_queries) from q (n_queries, E), k and v (n_keys, E). A
// thread has one row of q, a block has 16 rows. The loop takes a tile of 8 keys at a time.
#define ROWS 16
#define KEYS 8
#define E 8
extern "C" __global__ void attend(float* o, float* lse, const float* q, const float* k,
                                  const float* v, float scale, int n_queries, int n_keys) {
  __shared__ float kt[KEYS][E], vt[KEYS][E];
  const int t = threadIdx.x, i = blockIdx.x * ROWS + t;
  float row[E], sum[E], top = -1e30f, total = 0;
  for (int c = 0; c < E; ++c) {
    row[c] = i < n_queries ? scale * q[i * E + c] : 0;
    sum[c] = 0;
  }
  for (int first = 0; first < n_keys; first += KEYS) {
    const int n = min(KEYS, n_keys - first);  // the last tile may be shorter
    for (int j = t; j < n * E; j += ROWS) {
      kt[j / E][j % E] = k[first * E + j];
      vt[j / E][j % E] = v[first * E + j];
    }
    // >>> exercise 29c: a tile of keys, in the kernel
    // The threads of the block have fetched n keys and values: kt[j] and vt[j], j = 0 to n - 1.
    // Compute this thread's n scores, row times kt[j]. The new top is the largest of the old top
    // and these scores. Multiply total and sum by expf(top - new top). For each j let p be
    // expf(score - new top): add p to total, and p times vt[j] to sum. Then set top to the new top.
    // Other threads have fetched most of kt and vt. So call __syncthreads() before you read kt and
    // vt, and again at the end, before the next tile overwrites these. Threads with i >= n_queries
    // must also call it, both times.
    __syncthreads();
    float s[KEYS], new_top = top;
    for (int j = 0; j < n; ++j) {
      s[j] = 0;
      for (int c = 0; c < E; ++c) s[j] += row[c] * kt[j][c];
      new_top = fmaxf(new_top, s[j]);
    }
    const float shrink = expf(top - new_top);
    total *= shrink;
    for (int c = 0; c < E; ++c) sum[c] *= shrink;
    for (int j = 0; j < n; ++j) {
      const float p = expf(s[j] - new_top);
      total += p;
      for (int c = 0; c < E; ++c) sum[c] += p * vt[j][c];
    }
    top = new_top;
    __syncthreads();
    // <<<
  }
  if (i >= n_queries) return;
  for (int c = 0; c < E; ++c) o[i * E + c] = sum[c] / total;
  lse[i] = top + logf(total);
}
"""


def source(folder, text=KERNEL):
    """Writes the kernel into a file in `folder`. Returns the path of the file. The file begins with
    empty lines, so that a line has the same number in messages as in this script."""
    script = Path(__file__)
    before, _, _ = script.read_text(encoding="utf-8").partition(KERNEL)
    path = Path(folder, script.name)
    path.write_text("\n" * before.count("\n") + text, encoding="utf-8")
    return path


def launch_of(q, k, v):
    """Returns (grid, block, arguments) of the kernel. The first two arguments, o and lse, are its
    results."""
    o, lse = np.empty_like(q), np.empty(len(q), np.float32)
    arguments = o, lse, q, k, v, np.float32(WIDTH**-0.5), len(q), len(k)
    return -(-len(q) // ROWS), ROWS, arguments


def on_a_gpu(t, args, table):
    """Part 4: checks the kernel's results, finds its errors, and counts the bytes that it moves."""
    length = 3 * ROWS - 5  # the last block and the last tile are not full
    q, k, v, _ = (x.astype(np.float32) for x in problem(length, WIDTH))
    grid, block, arguments = launch_of(q, k, v)
    with tempfile.TemporaryDirectory() as folder:
        report = cuda.check(source(folder), grid, block, arguments, name="attend",
                            outputs=["o", "lse"])
        say(t, *(f"   {error}" for error in report.errors))
        table.row("29c: errors", len(report.errors), 0, "exact")
        wanted, wanted_lse = flash.forward(q.astype(float), k.astype(float), v.astype(float), KEYS)
        # The bound is for float32. Scores are up to 10, so exponentials have relative errors of
        # about 10 eps
        table.row("29c: O, difference from the page flash",
                  np.abs(arguments[0] - wanted).max(), 0.0, "abs<1e-4")
        table.row("29c: lse, difference from the page flash",
                  np.abs(arguments[1] - wanted_lse[:, 0]).max(), 0.0, "abs<1e-4")
        if args.device == "cuda":  # the kernel was checked on the CPU; now it runs on the GPU
            arrays = [put(args, a) if isinstance(a, np.ndarray) else a for a in arguments]
            cuda.kernel(source(folder), "attend")(grid, block, arrays)
            table.row("29c on the GPU: O, difference from the page flash",
                      np.abs(host(arrays[0]) - wanted).max(), 0.0, "abs<1e-4")
    n_blocks = -(-length // ROWS)
    for name in "k", "v":
        table.row(f"loads of {name}: L E ceil(L / R)", report.ledger[name].loads,
                  length * WIDTH * n_blocks, "exact")
    n_bytes = report.bytes_read + report.bytes_written
    table.row("bytes moved by the kernel: part 2's formula", n_bytes,
              bytes_by_forward(length, WIDTH, ROWS, KEYS), "exact")


def main(t, args):
    table = Table(t)
    say(t, "1. Three operations, and tiles: bytes moved.")
    moved = traffic(args, table)
    say(t, "2. and 3. Forward and backward in tiles.")
    in_tiles(args, table)
    say(t, "4. Forward as a kernel, 16 threads a block.")
    on_a_gpu(t, args, table)
    picture(t, args, draw, args, moved)
    return table


OPTIONS = {
    "length": (150, "L, the number of queries and of keys"),
    "width": (16, "E, how many numbers a query has"),
    "rows": (32, "R, the number of rows of Q in fast memory"),
    "keys": (16, "number of keys in a tile"),
}


def draw(plt, args, moved):
    """Draws three plots. Left: the tiles of causal attention. Middle: the bytes moved, over L.
    Right: the running sum of one query."""
    figure, (grid, curve, running) = plt.subplots(1, 3, figsize=(16, 5))
    n, n_rows, n_keys = 24, 6, 4
    number = 0
    for rows in parts(n, n_rows):
        for keys in parts(n, n_keys):
            shown = visible(rows, keys, True)
            crossed = shown and keys.stop - 1 > rows.start
            number += shown
            grid.add_patch(plt.Rectangle(
                (keys.start, rows.start), n_keys, n_rows, edgecolor="white", linewidth=2,
                facecolor=ORANGE if crossed else BLUE if shown else "#d9d9d9"))
            if shown:
                grid.text(keys.start + n_keys / 2, rows.start + n_rows / 2, str(number),
                          ha="center", va="center", color="white", fontsize=11)
    grid.plot([0, n], [0, n], color="black", linewidth=1)
    grid.set(xlim=(0, n), ylim=(n, 0), aspect="equal", xticks=range(0, n + 1, n_keys),
             yticks=range(0, n + 1, n_rows), xlabel="keys", ylabel="queries",
             title="Tiles of S, in their order. Orange:\nthe mask cuts them; grey: left out")

    width, lengths = args.width, np.geomspace(32, 16384, 40).astype(int).tolist()
    curve.loglog(lengths, [bytes_by_three(n, width) for n in lengths], color=RED,
                 label="three operations")
    for n_rows, colour in ((args.rows, BLUE), (8 * args.rows, ORANGE)):
        curve.loglog(lengths, [bytes_by_forward(n, width, n_rows, n) for n in lengths],
                     color=colour, label=f"tiles, {n_rows} rows of Q")
    for which in 0, 1:
        curve.loglog(list(moved), [pair[which] for pair in moved.values()], "o", color="black",
                     markersize=5, label=None if which else "counted")
    curve.set(title=f"Bytes moved by forward, E = {width}", xlabel="L, queries and keys",
              ylabel="bytes")
    curve.legend()

    s = np.linspace(0, 6, 40) + minidl.Generator(3).normal(40).astype(float)
    m, total, o = np.full((1, 1), -np.inf), np.zeros((1, 1)), np.zeros((1, 1))
    n_seen, largest, logs, unscaled, wrong = [], [], [], 0.0, []
    for keys in parts(len(s), 4):
        m, total, o = add_tile(m, total, o, s[None, keys], np.ones((4, 1)))
        unscaled += np.exp(s[keys] - m[0, 0]).sum()
        n_seen.append(keys.stop)
        largest.append(m[0, 0])
        logs.append(m[0, 0] + np.log(total[0, 0]))
        wrong.append(m[0, 0] + np.log(unscaled))
    exact = np.log(np.cumsum(np.exp(s)))
    running.plot(np.arange(1, 41), s, ".", color=GREY, label="score of a key")
    running.plot(np.arange(1, 41), exact, color=GREY, linewidth=6, alpha=0.4,
                 label="log of the sum of all so far")
    running.plot(n_seen, logs, "s-", color=BLUE, markersize=5, label="m + log l, a tile at a time")
    running.plot(n_seen, wrong, "x--", color=RED, label="the same without e^(m - m')")
    running.plot(n_seen, largest, drawstyle="steps-post", color=ORANGE, label="m")
    running.set(title="One query: the running sum", xlabel="keys so far")
    running.legend(fontsize=10)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS)
