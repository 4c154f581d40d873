"""13  Tensor parallelism: every matrix divided over the ranks.    60 minutes, needs: 07, 11

Split one matrix by columns, and the next matrix by rows. Then the two matrices of an MLP need only
one all-reduce in forward and one all-reduce in backward.

    mpirun -n 4 python tutorials/13_tensor_parallel.py
    python tutorials/13_tensor_parallel.py --sim 4    picture: out/13_tensor_parallel.png

Here all ranks see the whole batch, and each rank holds a part of every matrix. Which part? Each
column of Y = tanh(X A) needs only the same column of A. In Z = Y B, a rank with some columns of Y
needs only the same rows of B. f and g are the places where ranks exchange data:

    [Y1 Y2] = tanh(X [A1 A2])        f: all ranks have X; backward sums the gradients of X
    Z       = Y1 B1 + Y2 B2          g: sums the products; in backward all ranks have Z's gradient

Attention works in the same way: the matrices of q, k and v are split by columns (heads), and the
output matrix is split by rows. So a transformer block has 2 all-reduces in forward and 2 in
backward. With b sequences of s tokens and width h:

    sent per rank, block and step = 4 ring all-reduces = 4 x 2 (t-1)/t b s h numbers

t is the number of ranks. Data parallelism sends 2 (t-1)/t numbers for each weight, once a step,
during backward. Here all ranks wait four times in each block. So these ranks should be in one node.

Sequence parallelism: an all-reduce is a reduce-scatter, then an all-gather (07). Put norms and
dropouts between them. There a rank has only s/t of the tokens. It sends the same bytes, and keeps
only 1/t of the activations of norms and dropouts for backward. But the gradients of the norms'
weights must then be summed over the ranks.

The vocabulary of V words is divided, too: its matrix is the largest, and there are b s V logits.
For the loss of a token the ranks exchange three numbers, not V: a maximum, a sum and the target's
logit.

Papers: Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053); Korthikanti et al. 2022 (2205.05198).
Exercise: `minidl exercise 13` writes work/13_tensor_parallel.py with the marked region empty;
`minidl check 13` grades it.
"""

import numpy as np

import minidl
from minidl import memory, nn, optim
from minidl.comm import Grid, Ledger, Links, chunks, grid, ring
from minidl.course.out import GREY, LINES
from minidl.course.tutorial import Table, launch, picture, put, say
from minidl.data import text
from minidl.parallel.model import vocabulary
from minidl.parallel.model.parallelize import parallelize

VOCAB, HEADS = 256, 4


def cross_entropy(t, logits, target, first):
    """Returns (loss of each row, gradient of the losses' sum with respect to this rank's logits).

    logits: (rows, V/t), this rank's columns. Column 0 is word `first`. target: (rows,), numbers of
    words from 0 to V - 1."""
    # >>> exercise 13a: the loss of divided logits
    # loss = log(sum over ALL words of e^x) - x[target]. Its gradient is e^x / sum, minus 1 at the
    # target. ring.all_reduce(t, x, np.maximum) makes x the maximum over the ranks, in place.
    # ring.all_reduce(t, x) makes x the sum over the ranks. Send three numbers a row: the maximum
    # (without it e^x overflows), the sum, and the target's logit, which only one rank has. Do not
    # change logits.
    rows = np.arange(len(target))
    top = ring.all_reduce(t, logits.max(axis=1), np.maximum)
    e = np.exp(logits - top[:, None])
    here = (target >= first) & (target < first + logits.shape[1])
    column = np.where(here, target - first, 0)
    total = ring.all_reduce(t, e.sum(axis=1))
    x = ring.all_reduce(t, np.where(here, logits[rows, column], 0.0))
    gradient = e / total[:, None]
    gradient[rows[here], column[here]] -= 1
    return top + np.log(total) - x, gradient
    # <<<


def by_hand(t, table, n_rows=12, width=8, words=50):
    """Compares a divided MLP with an MLP on one rank, and the exercise's loss with the loss of one
    rank.

    Adds rows to the table."""
    rng = np.random.default_rng(0)  # the same on all ranks
    mlp_by_hand(t, table, rng, n_rows, width)
    loss_by_hand(t, table, rng, n_rows, words)


def mlp(x, gz, a, b):
    """Returns (z, gradient of x), where z = tanh(x a) b. gz is the gradient of z."""
    y = np.tanh(x @ a)
    z = y @ b
    gx = (gz @ b.T * (1 - y * y)) @ a.T
    return z, gx


def mlp_by_hand(t, table, rng, n_rows, width):
    """Compares a divided MLP with a whole one.

    A rank has some columns of a, and the rows of b with the same numbers."""
    a = rng.normal(size=(width, 4 * width))
    b = rng.normal(size=(4 * width, width))
    x, gz = rng.normal(size=(2, n_rows, width))
    first, end = chunks.bounds(4 * width, t.size)[t.rank : t.rank + 2]

    ledger = Ledger(t)
    z, gx = mlp(x, gz, a[:, first:end], b[first:end])
    z = ring.all_reduce(ledger, z)  # the forward of g
    gx = ring.all_reduce(ledger, gx)  # the backward of f

    whole_z, whole_gx = mlp(x, gz, a, b)
    error = max(np.abs(z - whole_z).max(), np.abs(gx - whole_gx).max())
    table.row("MLP by hand: difference from a whole MLP", error, 0.0, "abs<1e-12")

    theory = 2 * ring.bytes_sent(n_rows * width, 8, t.size, t.rank)
    table.row("MLP by hand: bytes, 2 all-reduces", ledger.bytes_sent, theory, "exact")


def loss_by_hand(t, table, rng, n_rows, words):
    """Compares the exercise's loss with the loss of whole logits. A rank has some of the
    columns."""
    logits = 9 * rng.normal(size=(n_rows, words))
    target = rng.integers(0, words, n_rows)
    first, end = chunks.bounds(words, t.size)[t.rank : t.rank + 2]
    ledger = Ledger(t)
    loss, gradient = cross_entropy(ledger, logits[:, first:end], target, first)

    rows = np.arange(n_rows)
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax = e / e.sum(axis=1, keepdims=True)
    whole_loss = -np.log(softmax[rows, target])
    whole_gradient = softmax.copy()
    whole_gradient[rows, target] -= 1

    error = max(np.abs(loss - whole_loss).max(),
                np.abs(gradient - whole_gradient[:, first:end]).max())
    table.row("loss by hand: difference from whole logits", error, 0.0, "abs<1e-12")

    theory = 3 * ring.bytes_sent(n_rows, 8, t.size, t.rank)
    table.row("loss by hand: bytes, 3 numbers a row", ledger.bytes_sent, theory, "exact")


def train(t, args, sequence=False):
    """Trains a GPT on the standard library's text, divided over all ranks of t.

    Returns (losses, bytes of the last step, number of weights on this rank, bytes kept for
    backward, the ledger)."""
    minidl.manual_seed(0)
    gpt = put(args, nn.GPT(VOCAB, args.context, args.layers, HEADS, args.width))
    ledger = Ledger(t)
    axes = Grid(ledger, tp=t.size)
    model = parallelize(gpt, axes, sequence=sequence, split_logits=True)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    corpus = text.stdlib_corpus(1 << 18)
    batches = text.random_batches(corpus, args.batch, args.context, 0, 1, 0)

    losses = []
    for _ in range(args.steps):
        ids, target = next(batches)  # the same on all ranks
        ids = put(args, ids)
        target = put(args, target)
        ledger.reset()
        optimizer.zero_grad()
        with memory.record(model, optimizer) as held:
            logits = model(ids)  # (b, s, this rank's words)
            loss = vocabulary.cross_entropy(axes.tp, logits.reshape(-1, logits.shape[2]),
                                            target.reshape(-1), VOCAB)
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    n_weights = sum(p.numel() for p in model.parameters())
    return losses, ledger.bytes_sent, n_weights, held.most("activations"), ledger


def weights_of(args, t, rank):
    """Returns the number of weights on rank `rank` of t ranks, by the formula.

    A rank has some heads and columns of a block's matrices, and some words of the embedding. Each
    rank has all positions, norms and row biases."""
    h, n_layers, s = args.width, args.layers, args.context
    heads = chunks.size(HEADS, t, rank)
    columns = chunks.size(4 * h, t, rank)
    words = chunks.size(VOCAB, t, rank)
    c = h // HEADS * heads
    attention = 3 * c * (h + 1) + c * h
    mlp = columns * (h + 1) + columns * h
    row_biases = 2 * h
    norms = 4 * h
    block = attention + mlp + row_biases + norms
    last_norm = 2 * h
    return words * h + s * h + n_layers * block + last_norm


def main(t, args):
    if args.width % HEADS or t.size > HEADS:
        raise SystemExit(f"--width must be divisible by the number of heads, {HEADS}, and the "
                         f"number of ranks must be at most {HEADS}; got --width {args.width} and "
                         f"{t.size} ranks")
    table = Table(t)
    n, r = t.size, t.rank
    by_hand(t, table)

    alone, _, X, kept_alone, _ = train(t.subgroup([r]), args)  # every rank trains alone
    losses, sent, weights, kept, ledger = train(t, args)
    n_rows = args.batch * args.context
    numbers = n_rows * args.width
    say(t, f"The model has {X:,} weights. Rank 0 holds {weights:,}, 1/{X / weights:.2f} of them")
    table.row("weights of this rank", weights, weights_of(args, n, r), "exact")

    one = ring.bytes_sent(numbers, 4, n, r)
    # a block has 4 all-reduces, the embedding has one, and the head has one
    theory = (4 * args.layers + 2) * one + vocabulary.bytes_sent(n_rows, 4, n, r)
    table.row("bytes of a step: 4 L + 2 all-reduces, and the loss", sent, theory, "exact")
    if numbers % n == 0:
        blocks = ledger.count(label="all_reduce.forward").bytes_sent - one
        blocks += ledger.count(label="copy.backward").bytes_sent - one
        of_a_block = 8 * (n - 1) * numbers * 4 // n
        table.row("bytes of a block: 8 (t-1)/t b s h 4", blocks // args.layers, of_a_block,
                  "exact")

    # The float32 sums have another order, so their rounding differs. Adam's division makes the
    # difference larger.
    error = float(np.abs(np.subtract(losses, alone)).max())
    table.row("losses: difference from one rank alone", error, 0.0, "abs<1e-4")
    shares = {"one rank": kept_alone, f"{n} ranks": kept}
    if args.context % n == 0:
        losses, n_bytes = with_sequences(t, args, table, theory)
        error = float(np.abs(np.subtract(losses, alone)).max())
        table.row("divided sequences: losses, difference from one rank", error, 0.0, "abs<1e-4")
        table.row("divided sequences: bytes kept (theory: if whole)", n_bytes, kept, "<=")
        shares["divided\nsequences, too"] = n_bytes

    where(t, one)
    picture(t, args, draw, n, shares)
    return table


def with_sequences(t, args, table, of_sums):
    """Trains a GPT with sequence parallelism.

    Adds rows to the table. Returns (losses, bytes kept for backward)."""
    losses, sent, _, kept, ledger = train(t, args, sequence=True)
    summed = ledger.count(label="copy.backward").bytes_sent
    positions = ledger.count(label="scatter.backward").bytes_sent
    found = sent - summed - positions
    table.row("divided sequences: bytes of the sums, as before", found, of_sums, "exact")

    n_vectors = 6 * args.layers + 2  # the vectors of norms and of row biases
    theory = n_vectors * ring.bytes_sent(args.width, 4, t.size, t.rank)
    table.row("divided sequences: bytes for norms, row biases", summed, theory, "exact")
    return losses, kept


def where(t, n_bytes):
    """Prints the time of an all-reduce of n_bytes along the tensor-parallel axis tp. It does this
    for two orders of the axes, with 4 ranks in a node."""
    links = Links.nodes(4, intra=(5e-6, 1e-11), inter=(20e-6, 1e-10))
    for order in ("tp cp ep dp pp", "dp cp ep pp tp"):
        sizes = grid.shape(16, order, tp=4, dp=4)
        cost = grid.traffic(sizes, links, {"tp": n_bytes})["tp"]
        place = "between nodes" if cost.crosses else "inside a node"
        say(t, f"  order {order}: all-reduce of tp {place}: {1e6 * cost.time_s:,.0f} us (modelled)")


OPTIONS = {
    "steps": (4, "training steps"),
    "layers": (4, "transformer blocks"),
    "width": (64, "width of the residual stream, a multiple of 4"),
    "context": (64, "bytes of text in a sequence"),
    "batch": (4, "sequences of a step"),
}


def draw(plt, n, shares):
    """Draws the matrices of an MLP, with one colour for each rank (left). Right: the bytes kept."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 3.8), width_ratios=[1.9, 1])
    colours = [LINES[i % len(LINES)] for i in range(n)]

    def matrix(x, y, wide, high, name, cuts=None):
        """Draws a matrix. cuts: "columns" or "rows", or None if all ranks have the whole matrix."""
        for i in range(n if cuts else 1):
            w, h = wide / n if cuts == "columns" else wide, high / n if cuts == "rows" else high
            at = x + i * w * (cuts == "columns"), y + (n - 1 - i) * h * (cuts == "rows")
            left.add_patch(plt.Rectangle(at, w, h, facecolor=colours[i] if cuts else "#eeeeee",
                                         edgecolor="white" if cuts else GREY, linewidth=1.2))
        left.text(x + wide / 2, y + high + 0.12, name, ha="center", va="bottom")

    def operator(x, name, below):
        left.add_patch(plt.Circle((x, 3), 0.36, facecolor="white", edgecolor="black"))
        left.text(x, 3, name, ha="center", va="center", style="italic")
        left.text(x, 2.4, below, ha="center", va="top", fontsize=9)

    matrix(0, 2, 1, 2, "X")
    operator(1.9, "f", "forward: copy\nbackward:\nall-reduce")
    matrix(2.8, 2.5, 2.6, 1, "A, in columns", "columns")
    matrix(6, 2, 2.6, 2, "tanh(X A)", "columns")
    matrix(9.2, 1.7, 1, 2.6, "B, in rows", "rows")
    operator(11.2, "g", "forward:\nall-reduce\nbackward: copy")
    matrix(12.1, 2, 1, 2, "Z")
    for i in range(n):
        left.text(2.8 + 2.4 * i, 0.5, f"rank {i}", color=colours[i], fontweight="bold")
    left.set(xlim=(-0.3, 13.4), ylim=(0, 5.2), aspect="equal",
             title="Columns, then rows: between f and g nothing is sent")
    left.axis("off")

    names = list(shares)
    bars = right.bar(names, [shares[k] / 2**20 for k in names], 0.6,
                     color=[GREY, LINES[0], LINES[1]][: len(names)])
    right.bar_label(bars, fmt="%.2f", padding=3)
    right.set(ylabel="MiB kept for backward by rank 0", title="Activations of one step",
              ylim=(0, 1.15 * max(shares.values()) / 2**20))
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
