"""06  Data parallel training on a ring.                       60 minutes, needs: 00, 01

An all-reduce is a reduce-scatter followed by an all-gather around a ring.

    mpirun -n 4 python tutorials/06_ring.py           or: minidl run -n 4 tutorials/06_ring.py
    python tutorials/06_ring.py --sim 4               picture: out/06_ring.png

Data parallel: every rank has the whole model and a p-th of the batch. The gradient of a mean is the mean of the
gradients, so after every backward the ranks average theirs, take the same step, and remain equal:

    d/dw  1/(p b) sum over all p b samples  =  1/p sum over ranks ( d/dw 1/b sum over its b samples )

The sum over ranks of n numbers, K = 4n bytes, on all ranks. Everybody sending everything to rank 0 and back costs
rank 0 2(p-1)K. The ring cuts the numbers into p chunks, and every rank always sends one chunk to its right:

    reduce-scatter    p-1 steps; each adds the chunk that came to one's own; then rank r has the sum of chunk r+1
    all-gather        p-1 steps; each hands a complete chunk on

    bytes sent by each rank = 2 (p-1) K/p  <  2K, whatever p is;    messages = 2 (p-1)

If p does not divide n, the first n mod p chunks are one longer; rank r sends every chunk but r+1, then every chunk
but r+2: 2K - bytes(r+1) - bytes(r+2), and all ranks together exactly 2 (p-1) K.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
Exercises: `minidl exercise 06` writes work/06_ring.py with the marked regions empty; `minidl check 06` grades it.
"""

import time

import numpy as np

import minidl
from minidl import nn
from minidl.comm import chunks, ring
from minidl.comm.ledger import Ledger
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.tutorial import Table, gather, launch, picture, progress, say


def reduce_scatter(t, x):
    """Sum x, (n,), over the ranks in place: afterwards rank r holds the whole sum of chunk r+1."""
    p, left, right = t.size, (t.rank - 1) % t.size, (t.rank + 1) % t.size
    chunk = chunks.split(x, p)  # p views of x
    scratch = np.empty_like(chunk[0])  # chunk 0 is one of the longest
    # >>> exercise 06a: reduce-scatter
    # In step s = 0, ..., p-2 send chunk rank-s to the right, receive from the left and add to chunk rank-s-1.
    # Chunk numbers are modulo p. t.sendrecv(out, right, into, left) does both at once; `into` must have exactly
    # the size of what comes: scratch[: len(...)].
    for s in range(p - 1):
        mine = chunk[(t.rank - s - 1) % p]
        received = t.sendrecv(chunk[(t.rank - s) % p], right, scratch[: len(mine)], left)
        mine += received
    # <<<


def all_gather(t, x):
    """Hand the complete chunks around: afterwards every rank holds the whole sum."""
    p, left, right = t.size, (t.rank - 1) % t.size, (t.rank + 1) % t.size
    chunk = chunks.split(x, p)
    for s in range(p - 1):
        t.sendrecv(chunk[(t.rank + 1 - s) % p], right, chunk[(t.rank - s) % p], left)


def all_reduce(t, x):
    reduce_scatter(t, x)
    all_gather(t, x)


def shift(t, out, into):
    """Send `out` to the right neighbour and receive `into` from the left, with blocking calls only."""
    left, right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
    # >>> exercise 06b: send and receive without a deadlock
    # Use only t.send(out, right) and t.recv(into, left): no sendrecv. First let every rank send, then receive.
    #     minidl run -n 4 work/06_ring.py --n-shift 128          works: MPI buffers small messages
    #     minidl run -n 4 work/06_ring.py --n-shift 100000       hangs (ctrl-C): a large send waits for its receive
    #     python work/06_ring.py --sim 4 --n-shift 100000        the simulator says who waits for whom
    # Then find an order that cannot hang and takes two or three message times however many ranks there are:
    # a send must meet a receive. Hint: even and odd ranks.
    if t.rank % 2 == 0:
        t.send(out, right)
        t.recv(into, left)
    else:
        t.recv(into, left)
        t.send(out, right)
    # <<<


def average_gradients(t, parameters):
    """Replace every parameter's gradient by its mean over the ranks."""
    # >>> exercise 06c: average the gradients
    # Copy all gradients into one flat array, all_reduce it once, divide, and write every piece back to where it
    # came from. Each p in `parameters` has p.grad, an array of any shape.
    flat = np.concatenate([p.grad.reshape(-1) for p in parameters])
    all_reduce(t, flat)
    flat /= t.size
    start = 0
    for p in parameters:
        p.grad[...] = flat[start : start + p.grad.size].reshape(p.grad.shape)
        start += p.grad.size
    # <<<


def train(t, steps, batch, lr, bar=False):
    """SGD on the digits; rank r takes samples r, r+p, ... of every batch. Returns the loss of each step."""
    minidl.manual_seed(0)  # the same weights on every rank
    model = nn.MLP(64, 64, 10, activation=nn.Tanh)
    parameters = list(model.parameters())
    images, labels = datasets.digits()[0][:]
    images = images.reshape(-1, 64)
    order = minidl.Generator(1)  # the same batches on every rank
    losses = []
    for _ in progress(t, range(steps), "training") if bar else range(steps):
        mine = order.integers(0, len(images), (batch,))[t.rank :: t.size]
        loss = F.cross_entropy(model(minidl.Tensor(images[mine])), minidl.Tensor(labels[mine]))
        model.zero_grad()
        loss.backward()
        average_gradients(t, parameters)
        for parameter in parameters:
            parameter.data = parameter.data - lr * parameter.grad
        mean = np.array([loss.item()])
        all_reduce(t, mean)
        losses.append(mean[0] / t.size)
    return np.array(losses)


class Film:
    """A transport that keeps a copy of x before every exchange, to show how the chunks fill."""

    def __init__(self, t, x):
        self.t, self.x, self.frames = t, x, []
        self.rank, self.size = t.rank, t.size

    def sendrecv(self, *message):
        self.frames.append(self.x.copy())
        return self.t.sendrecv(*message)


def film(t):
    """(2p-1, p): how many ranks are summed in each chunk, before and after every step. One element a chunk, all 1."""
    x = np.ones(t.size)
    filmed = Film(t, x)
    all_reduce(filmed, x)
    return np.array([*filmed.frames, x])


def main(t, args):
    p, r = t.size, t.rank
    table = Table(t)

    say(t, f"1. A ring all-reduce of n = {args.n:,} float32 on {p} ranks.")
    ledger = Ledger(t)
    x = np.arange(args.n, dtype=np.float32) % 1000 + r  # small whole numbers: their sums are exact
    expected = np.arange(args.n, dtype=np.float32) % 1000 * p + p * (p - 1) // 2
    before = time.perf_counter()
    all_reduce(ledger, x)
    seconds = time.perf_counter() - before
    table.row("largest error of the sum", float(np.abs(x - expected).max()), 0.0, "exact")
    if args.n % p == 0:
        table.row("bytes sent by each rank", ledger.bytes_sent, 2 * (p - 1) * args.n * 4 // p, "exact")
    table.row("messages sent by each rank", ledger.messages_sent, 2 * (p - 1), "exact")

    uneven = args.n + 3
    ledger.reset()
    noise = minidl.Generator(7, stream=r).normal(uneven)
    x, library = noise.copy(), noise.copy()
    all_reduce(ledger, x)
    own = [chunks.size(uneven, p, r + 1), chunks.size(uneven, p, r + 2)]
    table.row(f"bytes, n = {uneven:,}: this rank", ledger.bytes_sent, (2 * uneven - sum(own)) * 4 if p > 1 else 0, "exact")
    totals = gather(t, ledger.bytes_sent)
    results = gather(t, x.tobytes())
    if r == 0:
        table.row(f"bytes, n = {uneven:,}: all ranks", sum(totals), 2 * (p - 1) * uneven * 4, "exact")
        table.row("different results among the ranks", len(set(results)), 1, "exact")
    ring.all_reduce(t, library)
    table.row("elements unlike minidl.comm.ring's", int((x != library).sum()), 0, "exact")

    say(t, f"2. A shift of {args.n_shift:,} float32 to the right, with blocking sends and receives.")
    out, into = np.full(args.n_shift, r, np.float32), np.empty(args.n_shift, np.float32)
    if p > 1:
        shift(t, out, into)
        table.row("came from the left", int(into.min()), (r - 1) % p, "exact")

    say(t, f"3. {args.steps} steps on the digits: {p} ranks x {args.batch // p} samples, and 1 rank x {args.batch}.")
    if args.batch % p:
        raise ValueError(f"rank {r}: --batch {args.batch} is not divisible by {p} ranks, so the mean of their means "
                         f"is not the mean of the batch; try --batch {args.batch // p * p}")
    losses = train(t, args.steps, args.batch, args.lr, bar=True)
    films = gather(t, film(t))
    if r == 0:
        alone = train(t.subgroup([0]), args.steps, args.batch, args.lr, bar=True)
        # float32: the two runs add in different orders, which moves the seventh digit
        table.row("largest difference in loss", float(np.abs(losses - alone).max()), 0.0, "abs<1e-6")
        table.row("loss, first step", float(losses[0]))
        table.row("loss, last step", float(losses[-1]))
        table.row("ms for the all-reduce (wall)", 1000 * seconds)
        picture(t, draw, films, losses, alone)
    return table


def draw(plt, films, losses, alone):
    """Above: how the chunks of every rank fill. Below: the two losses and their difference."""
    p = len(films)
    figure = plt.figure(figsize=(12, 7.2))
    above, below = figure.subfigures(2, 1, height_ratios=(1.1, 1), hspace=0.04)
    above.suptitle(f"Ring all-reduce: how many of the {p} ranks are summed in each chunk", fontsize=15)
    panels = above.subplots(1, min(p, 4), squeeze=False, sharey=True)[0]  # more than four do not fit a slide
    for r, (axes, counts) in enumerate(zip(panels, films, strict=False)):
        image = axes.pcolormesh(counts.T, cmap=plt.get_cmap("YlGnBu", p), vmin=0.5, vmax=p + 0.5, edgecolors="white",
                                linewidth=2)
        if p <= 6:
            for (step, c), count in np.ndenumerate(counts):
                axes.text(step + 0.5, c + 0.5, f"{count:.0f}", ha="center", va="center", fontsize=13,
                          color="white" if count > 0.55 * p else "black")
        steps = range(0, 2 * p - 1, max(1, p // 4))
        axes.set_xticks([s + 0.5 for s in steps], [str(s) if s else "start" for s in steps])
        axes.set_yticks([c + 0.5 for c in range(p)], range(p))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(f"rank {r}", pad=22)
        axes.set(xlabel="after step", ylabel="chunk" if r == 0 else "", ylim=(p, 0))
        if p > 1:
            axes.axvline(p, color="#cb181d", linestyle=":")
            for middle, phase in ((p / 2 + 0.5, "reduce-scatter"), ((3 * p - 1) / 2, "all-gather")):
                axes.text(middle, -0.06, phase, ha="center", va="bottom", fontsize=10, color="#cb181d")
    above.colorbar(image, ax=panels, label="ranks summed", ticks=range(1, p + 1, max(1, p // 8)), pad=0.01)
    left, right = below.subplots(1, 2)
    left.plot(alone, color="#9ecae1", linewidth=7, label="1 rank, the whole batch")
    left.plot(losses, color="#08306b", linewidth=1.5, label=f"{p} ranks, 1/{p} of the batch each")
    left.set(xlabel="training step", ylabel="cross entropy (nats)", title="Data parallel: the same loss ...", ylim=(0, None))
    left.legend()
    steps = np.arange(len(losses))
    difference = np.abs(losses - alone)
    right.semilogy(steps[difference > 0], difference[difference > 0], "o", color="#08306b", markersize=5)
    right.axhline(1e-6, color="#cb181d", linestyle="--")
    right.text(0, 1.3e-6, "allowed: 1e-6", color="#cb181d", va="bottom")
    right.set(xlabel="training step", ylabel="|difference| (nats)", title="... up to the order of additions",
              xlim=(-1, len(losses)), ylim=(1e-9, 1e-5))
    right.text(len(losses) - 1, 5e-6, f"not drawn: {(difference == 0).sum()} steps without any", ha="right", fontsize=10)
    return figure


if __name__ == "__main__":
    launch(main, {
        "n": (1_000_000, "floats in the all-reduce"),
        "n_shift": (100_000, "floats in the shift of exercise 06b"),
        "steps": (60, "training steps"),
        "batch": (120, "samples per step, on all ranks together"),
        "lr": (0.5, "learning rate"),
    }, ranks=4)
