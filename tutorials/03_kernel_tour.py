"""03  A tour of kernels: rows, versions, barriers.                  60 minutes, needs: 02

Row reductions, warp shuffles, one-pass algorithms, and why __syncthreads matters.

    python tutorials/03_kernel_tour.py            one process; picture: out/03_kernel_tour.png
    minidl kernel bench layer_norm                its rungs: right? how fast? softmax has them, too

Layer norm and softmax need a sum over a row before the first result of that row can be written. The
naive kernels read the row again for each thing they need; each further version reads it less:

    layer norm v1   a thread per row: mean, variance, result      3 reads, 1 write: 16 bytes
               v2   a block per row: mean and variance together   2 reads, 1 write: 12
               v3   a warp per row, which stays in registers      1 read,  1 write:  8
    softmax         v2 and v3 as above, the largest in place of the mean. v1 keeps the exponentials
                    in y: it reads x twice, writes y, reads it, writes it again: 20
    AdamW           reads w, g, m, v, writes w, m, v: 28 bytes a parameter. Written op by op, every
                    + and * reads its operands and writes its result.

All bytes are of float32, for each element; layer norm also writes 8 a row, mean and 1/std, and
reads its scale and shift, 8 bytes an element, the same for all rows: they come from a cache.

The threads of a block exchange values through shared memory. Between a write of one thread and the
read of another there must be a barrier, __syncthreads(), which all threads of the block must reach.
A GPU runs threads in any order, so a kernel without it may give the right result a thousand times
before it gives a wrong one. Part 2 leaves out each barrier in turn and runs the threads in
ascending, descending and shuffled order.

Two kernels that move the same bytes may differ tenfold in time. A warp's 32 threads run one
instruction together, and their 32 addresses make one request. In global memory it is served in
sectors of 32 bytes: neighbours in 4 sectors, scattered floats in 32 (coalescing). Shared memory has
32 banks, a word each in turn: threads that want different words of one bank wait for each other
(bank conflicts). A branch that a warp's threads take both ways runs both, one after the other.
Part 4 counts the first two for a matrix transposed in three ways. For a script of your own:

    minidl kernel run --profile script.py               --gpu A100: how many of its blocks fit, too
      line         access         requests  threads    sectors  best  worst
      t.cu:3       stores out           32     32.0       32.0   4.0     32   <- 8.0 x as many ...

Sources: Harris, "Optimizing Parallel Reduction in CUDA", 2007; Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; Karpathy, llm.c (dev/cuda), 2024, for the versions.
Kernels: kernels/tour.cu, layer_norm.cu, softmax.cu, adamw.cu.
Check form: minidl/cuda/checks/checker.py. Part 4: minidl/cuda/checks/profile.py.
Exercises: `minidl exercise 03` writes work/03_kernel_tour.py and work/tour.cu with the marked
regions empty; `minidl check 03` grades them.
"""

import tempfile
from pathlib import Path

import numpy as np

import minidl
from minidl import cuda
from minidl.course.out import BLUE, RED, arrow, box
from minidl.tutorial import Table, host, launch, picture, put, say

BLOCK = 256  # threads in a block

# work/tour.cu beside work/03_kernel_tour.py, else kernels/tour.cu
OWN = Path(__file__).with_name("tour.cu")
FILE = OWN if OWN.exists() else cuda.KERNELS / "tour.cu"


def checked(file, name, grid, args, **options):
    """Launch under watch; the Report. An error ends the script."""
    report = cuda.check(file, grid, BLOCK, args, name=name, **options)
    if report.errors:
        raise SystemExit(str(report))
    return report


def layer_norm_ladder(x, w, b):
    """[Report of v1, v2, v3], largest error."""
    rows, cols = x.shape
    wide = x.astype(float)
    xhat = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    reports, error = [], 0.0
    for rung, grid in enumerate((-(-rows // BLOCK), rows, -(-rows * 32 // BLOCK)), 1):
        y, mean, rstd = np.empty_like(x), np.empty(rows, x.dtype), np.empty(rows, x.dtype)
        args = (y, mean, rstd, x, w, b, rows, cols, 1e-5)
        name = f"layer_norm_v{rung}"
        reports.append(checked("layer_norm.cu", name, grid, args, outputs=["y", "mean", "rstd"]))
        error = max(error, float(np.abs(y - (xhat * w + b)).max()))
    return reports, error


def softmax(x):
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def softmax_ladder(x):
    rows, cols = x.shape
    reports, error = [], 0.0
    for rung, grid in enumerate((-(-rows // BLOCK), rows, -(-rows * 32 // BLOCK)), 1):
        y = np.empty_like(x)
        args = (y, x, rows, cols)
        reports.append(checked("softmax.cu", f"softmax_v{rung}", grid, args, outputs=["y"]))
        error = max(error, float(np.abs(y - softmax(x)).max()))
    return reports, error


class Counted(np.ndarray):
    """An array that counts the bytes that NumPy's operations read and write."""

    n_bytes = 0

    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        plain = [np.asarray(x) if isinstance(x, Counted) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **keywords)
        arrays = [x for x in (*plain, result) if isinstance(x, np.ndarray)]
        Counted.n_bytes += sum(x.nbytes for x in arrays)
        return result.view(Counted)


def adamw(w, g, m, v, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8, decay=0.01):
    """A first AdamW step as one writes it: the new w, m, v."""
    m = b1 * m + (1 - b1) * g
    v = b2 * v + (1 - b2) * g * g
    w = (1 - lr * decay) * w - lr / (1 - b1) * m / (np.sqrt(v) / (1 - b2) ** 0.5 + eps)
    return w, m, v


def adamw_bytes(n):
    """Bytes a parameter (op by op, fused), and the largest difference in w."""
    generator = minidl.Generator(4)
    w, g, m = (generator.normal(n) for _ in range(3))
    v = generator.uniform(n)
    Counted.n_bytes = 0
    wanted = adamw(*(x.view(Counted) for x in (w, g, m, v)))[0]
    lr, b1, b2, eps, decay = 1e-3, 0.9, 0.999, 1e-8, 0.01
    step, inv_root = lr / (1 - b1), (1 - b2) ** -0.5
    args = (w, g, m, v, n, step, inv_root, b1, 1 - b1, b2, 1 - b2, eps, 1 - lr * decay, 0.0, 1.0)
    report = checked("adamw.cu", "adamw_naive", -(-n // BLOCK), args)
    difference = float(np.abs(w - np.asarray(wanted)).max())
    return Counted.n_bytes / n, (report.bytes_read + report.bytes_written) / n, difference


def without_barrier(number, x):
    """`center` of tour.cu with one __syncthreads() left out, on 64 threads a row; the Report."""
    parts = center_text().split("__syncthreads();")
    text = "__syncthreads();".join(parts[: number + 1])
    text += "/* left out */;" + "__syncthreads();".join(parts[number + 1 :])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tour.cu")
        path.write_text(text)
        args = (np.empty_like(x), x, x.shape[1])
        return cuda.check(path, len(x), 64, args, name="center", shared_mem=4 * 64)


def center_text():
    """The text of kernels/tour.cu up to the end of its first kernel."""
    text = (cuda.KERNELS / "tour.cu").read_text()
    return text[: text.index("\n}\n") + 3]


def transposed(name, x, **defines):
    """The Profile of a transposition of tour.cu, which must be right."""
    y, blocks = np.empty_like(x), len(x) // 32
    report = cuda.check(cuda.KERNELS / "tour.cu", (blocks, blocks), (32, 32), (y, x, len(x)),
                        name=name, defines=defines, outputs=["out"], profile=True)
    if report.errors or not np.array_equal(y, x.T):
        raise SystemExit(str(report))
    return report.profile


def a_request(profile, what, array):
    """Sectors, or times that a bank is asked, of one request of a warp, on average."""
    line, = (a for a in profile.accesses if (a.what, a.array) == (what, array))
    return line.units / line.requests


def main(t, args):
    table = Table(t)
    generator = minidl.Generator(3)
    rows, cols = args.rows, args.cols
    n = rows * cols
    say(t, f"1. Bytes by version, on {rows} rows of {cols} floats: every load and store counted.")
    x, w, b = generator.normal(rows, cols), generator.normal(cols), generator.normal(cols)
    norms, error = layer_norm_ladder(x, w, b)
    for rung, report, theory in zip((1, 2, 3), norms, (16, 12, 8), strict=True):
        moved = report.ledger["x"].load_bytes + report.ledger["y"].store_bytes
        table.row(f"layer norm v{rung}: bytes of x and y", moved, theory * n, "exact")
    moved = sum(norms[2].ledger[name].store_bytes for name in ("mean", "rstd"))
    table.row("layer norm: bytes of mean and 1/std", moved, 8 * rows, "exact")
    moved = sum(norms[2].ledger[name].load_bytes for name in ("w", "b"))
    table.row("layer norm: bytes of scale and shift", moved, 8 * n, "exact")
    table.row("layer norm: largest error", error, 0.0, "abs<1e-5")
    softmaxes, error = softmax_ladder(x)
    for rung, report, theory in zip((1, 2, 3), softmaxes, (20, 12, 8), strict=True):
        moved = report.bytes_read + report.bytes_written
        table.row(f"softmax v{rung}: bytes", moved, theory * n, "exact")
    table.row("softmax: largest error", error, 0.0, "abs<2e-6")
    by_ops, fused, difference = adamw_bytes(1000)
    table.row("AdamW op by op: bytes a parameter", by_ops, 4 * 33.0, "exact")
    table.row("AdamW fused: bytes a parameter", fused, 28.0, "exact")
    table.row("AdamW: largest difference", difference, 0.0, "abs<1e-6")

    say(t, "2. `center` of kernels/tour.cu, each barrier left out in turn, in three thread orders:")
    x = generator.normal(2, 100)
    for number, which in enumerate(("first", "second")):
        report = without_barrier(number, x)
        say(t, f"   without the {which} barrier:")
        for f in report.errors:
            say(t, f"      {f}")
        kinds = {f.kind for f in report.errors}
        table.row(f"no {which} barrier: data race", "data race" in kinds, True, "exact")
        depends = "result depends on thread order" in kinds
        table.row(f"no {which} barrier: order of threads shows", depends, True, "exact")

    say(t, "3. The same kernel whole, and softmax_online, the exercises.")
    x = generator.normal(rows, cols)
    y = np.empty_like(x)
    centered = checked(FILE, "center", rows, (y, x, cols), shared_mem=4 * BLOCK, outputs=["y"])
    error = float(np.abs(y - (x - x.astype(float).mean(1, keepdims=True))).max())
    table.row("center: largest error", error, 0.0, "abs<2e-6")
    shared = centered.shared["s"]
    # a tree over B threads adds B - 1 times: 2 loads, 1 store; every output element reads s[0]
    table.row("center: shared stores", shared.stores, rows * (2 * BLOCK - 1), "exact")
    table.row("center: shared loads", shared.loads, rows * 2 * (BLOCK - 1) + n, "exact")
    shared_mem = {"shared_mem": 8 * BLOCK}
    online = checked(FILE, "softmax_online", rows, (y, x, cols), **shared_mem, outputs=["y"])
    table.row("softmax_online: bytes", online.bytes_read + online.bytes_written, 12 * n, "exact")
    table.row("softmax_online: largest error", float(np.abs(y - softmax(x)).max()), 0.0, "abs<2e-6")

    say(t, "4. What a GPU makes of an access: a matrix transposed in three ways (kernels/tour.cu).")
    square = generator.normal(64, 64)
    naive = transposed("transpose_naive", square)
    table.row("naive: sectors of a load", a_request(naive, "loads", "in"), 4.0, "exact")
    table.row("naive: sectors of a store", a_request(naive, "stores", "out"), 32.0, "exact")
    for pad, waits in ((0, 32.0), (1, 1.0)):
        tile = transposed("transpose_tile", square, PAD=pad)
        width = f"tile {32 + pad} wide"
        table.row(f"{width}: sectors of a store", a_request(tile, "stores", "out"), 4.0, "exact")
        table.row(f"{width}: a column, times a bank is asked", a_request(tile, "loads", "tile"),
                  waits, "exact")

    if args.device == "cuda":  # what was checked on the CPU runs on the GPU
        wanted_by = {"center": x - x.mean(1, keepdims=True), "softmax_online": softmax(x)}
        for name, wanted in wanted_by.items():
            there = put(args, x)
            result = np.empty_like(there)
            kernel = cuda.kernel(FILE, name)
            kernel(rows, BLOCK, (result, there, cols), shared_mem=8 * BLOCK)
            error = float(np.abs(host(result) - wanted).max())
            table.row(f"{name} on the GPU: largest error", error, 0.0, "abs<2e-6")
    picture(t, draw, norms, softmaxes, (by_ops, fused), n)
    return table


def draw(plt, norms, softmaxes, adamws, n):
    """Left: a sum in shared memory, phase by phase. Right: bytes of every version."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13.5, 6.4), width_ratios=(1, 1.1))
    left.set_title("Shared memory of `center`: one block of 8 threads")
    # (what is written, which elements, how many are still needed, [(read by, element)])
    phases = [("s[t] = mine", 8, 8, [])]
    for d in (4, 2, 1):
        reads = [(t, t + k) for t in range(d) for k in (0, d)]
        phases.append((f"s[t] += s[t + {d}]", d, 2 * d, reads))
    phases.append(("all read s[0]", 0, 1, [(t, 0) for t in range(8)]))
    for row, (label, n_written, n_needed, reads) in enumerate(phases):
        y = -2.0 * row
        left.text(-1.1, y, label, ha="right", va="center", fontsize=11)
        for t in range(8):
            box(left, t, y, f"s[{t}]", "#fee0d2" if t < n_written else "white", fontsize=10,
                alpha=1 if t < n_needed else 0.25)
        down = 0 if n_written else 1.55  # the last phase writes nothing: its arrows lie below it
        for t, source in reads:
            arrow(left, (source, y + 1.55 - 1.25 * down), (t, y + 0.42 - down))
        if n_written:
            left.axhline(y - 0.55, color=RED, linestyle=":", linewidth=1.5)
            left.text(7.8, y - 0.45, "__syncthreads()", color=RED, fontsize=9)
    note = "Filled: written in this phase. Arrow: read. Pale: not needed any more."
    left.text(-3.9, -9.65, note, fontsize=10, color=BLUE)
    left.set(xlim=(-3.9, 9.2), ylim=(-9.8, 0.8))
    left.axis("off")

    bars = {}  # {label: bytes loaded and stored of each element}
    for word, reports in (("layer norm", norms), ("softmax", softmaxes)):
        for rung, report in enumerate(reports, 1):
            xy = [report.ledger[name] for name in ("x", "y")]
            bars[f"{word} v{rung}"] = [sum(a.load_bytes for a in xy) / n,
                                       sum(a.store_bytes for a in xy) / n]
    loaded, stored = zip(*bars.values(), strict=True)
    right.barh(list(bars), loaded, color=BLUE, label="loaded")
    right.barh(list(bars), stored, left=loaded, color=RED, label="stored")
    both = right.barh(["AdamW op by op", "AdamW fused"], adamws, color="#bdbdbd",
                      label="both together")
    right.bar_label(right.containers[1], [f"{sum(b):.0f}" for b in bars.values()], padding=4)
    right.bar_label(both, ["", f"{adamws[1]:.0f}"], padding=4)
    # to scale, this bar would leave the others too short to compare
    right.text(41, 6, f"{adamws[0]:.0f}: far past the edge >", ha="right", va="center")
    right.invert_yaxis()
    right.set(title="Bytes an element, counted", xlabel="bytes (float32)", xlim=(0, 42))
    right.legend(loc="center right")
    return figure


OPTIONS = {
    "rows": (8, "rows of the arrays"),
    "cols": (1000, "floats in a row"),
}

if __name__ == "__main__":
    launch(main, OPTIONS)
