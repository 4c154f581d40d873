"""07  Data parallel training on a ring.                       60 minutes, needs: 00, 01

An all-reduce is a reduce-scatter, then an all-gather. In both, data goes around a ring of ranks.

    mpirun -n 4 python tutorials/07_ring.py           or: minidl run -n 4 tutorials/07_ring.py
    python tutorials/07_ring.py --sim 4               picture: out/07_ring.png

Data parallel: there are p ranks. Every rank has the whole model and b samples, 1/p of the batch.
The gradient of a mean is the mean of the gradients. So the ranks average their gradients and take
the same step, and their weights stay equal:

    d/dw  mean over all p b samples  =  mean over the p ranks of ( d/dw  mean over its b samples )

Every rank has n numbers, K = 4n bytes, and needs their sums over the ranks. If all ranks send their
numbers to rank 0, rank 0 receives (p-1) K, then sends (p-1) K back. All other ranks wait. The ring
cuts the numbers into p chunks. In every step every rank sends one chunk to its right neighbour:

    reduce-scatter    p-1 steps; in each, a rank adds the received chunk to its own numbers;
                      at the end rank r has the whole sum of chunk r+1
    all-gather        p-1 steps; in each, a rank sends on a chunk that is complete

    bytes sent by each rank = 2 (p-1) K/p  <  2K, for any p;    messages = 2 (p-1)
    seconds = 2 (p-1) (alpha + K/p beta)     alpha: seconds a message, beta: seconds a byte (--sim)

If p does not divide n, the first n mod p chunks have one more number. Rank r sends every chunk
except r+1, then every chunk except r+2. This is 2K - bytes(r+1) - bytes(r+2) bytes. All ranks
together send exactly 2 (p-1) K.

Paper: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
JPDC 69, 2009. minidl's own code: minidl/comm/ring.py. Exercises: `minidl exercise 07` writes
work/07_ring.py with the marked regions empty; `minidl check 07` grades it.
"""

import itertools
from types import SimpleNamespace

import numpy as np

import minidl
from minidl import nn
from minidl.comm import Ledger, chunks
from minidl.course.out import BLUE, RED, line_at
from minidl.course.tutorial import (
    Table, gather, host, launch, per_rank, picture, progress, put, say,
)
from minidl.data import DataLoader, DistributedSampler, datasets
from minidl.nn import functional as F
from minidl.plain.ring import all_gather


def reduce_scatter(t, x):
    """Sums x, (n,), over the ranks in place. Then rank r holds the whole sum of chunk r+1."""
    p = t.size
    left = (t.rank - 1) % p
    right = (t.rank + 1) % p
    chunk = chunks.split(x, p)  # p views of x
    scratch = np.empty_like(chunk[0])  # no chunk is longer than chunk 0
    # >>> exercise 07a: reduce-scatter
    # In step s = 0, ..., p-2: send chunk rank-s to the right; receive a chunk from the left; add it
    # to chunk rank-s-1. Chunk numbers are modulo p. t.sendrecv(out, right, into, left) sends `out`
    # and receives into `into` at the same time. `into` must have exactly the size of the received
    # chunk: scratch[: len(...)].
    for s in range(p - 1):
        mine = chunk[(t.rank - s - 1) % p]
        received = t.sendrecv(chunk[(t.rank - s) % p], right, scratch[: len(mine)], left)
        mine += received
    # <<<


def all_reduce(t, x):
    reduce_scatter(t, x)
    all_gather(t, x)


def shift(t, out, into):
    """Sends `out` to the right and receives `into` from the left, with blocking calls only."""
    left = (t.rank - 1) % t.size
    right = (t.rank + 1) % t.size
    # >>> exercise 07b: send and receive without a deadlock
    # Use only t.send(out, right) and t.recv(into, left). First let every rank send, then receive:
    #     minidl run -n 4 work/07_ring.py --n-shift 128       works: MPI buffers a small message
    #     minidl run -n 4 work/07_ring.py --n-shift 100000    hangs: a large one waits for a receive
    #     python work/07_ring.py --sim 4 --n-shift 100000     hangs, too
    # (How large? On one machine Open MPI 5.0 hangs from 4,096 bytes, MPICH 5.0 from 8,192.)
    # If a run hangs, it prints which rank waits for which. What does every rank wait for, and at
    # which line? Which ranks wait for each other in a cycle? If one rank of the cycle receives
    # first, the cycle breaks. Then find an order of sends and receives that cannot hang, and takes
    # the time of two or three messages for any number of ranks. Hint: even and odd ranks.
    if t.rank % 2 == 0:
        t.send(out, right)
        t.recv(into, left)
    else:
        t.recv(into, left)
        t.send(out, right)
    # <<<


def average_gradients(t, parameters):
    """Replaces every parameter's gradient by its mean over the ranks."""
    # >>> exercise 07c: average the gradients
    # Copy all gradients into one flat array. Call all_reduce on this array once. Divide it by the
    # number of ranks. Copy every piece back to its gradient. Each p in `parameters` has
    # p.grad.array, an array of any shape.
    flat = np.concatenate([p.grad.array.reshape(-1) for p in parameters])
    all_reduce(t, flat)
    flat /= t.size
    start = 0
    for p in parameters:
        grad = p.grad.array
        grad[...] = flat[start : start + grad.size].reshape(grad.shape)
        start += grad.size
    # <<<


def batches(t, batch):
    """Yields this rank's part of every batch of digits, without end.

    All ranks shuffle in the same way. Then they take samples in turn. So a batch of all ranks
    together is the same for any number of ranks."""
    digits = datasets.digits()[0]
    sampler = DistributedSampler(len(digits), t.rank, t.size, tail="drop")
    loader = DataLoader(digits, per_rank(t, batch), sampler=sampler, drop_last=True)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)  # every epoch has another order
        yield from loader


def train(t, args):
    """Trains on the digits with SGD. Returns (the loss of each step, the weights)."""
    minidl.manual_seed(0)  # the same weights on every rank
    model = put(args, nn.MLP(64, 64, 10, activation=nn.Tanh))
    parameters = list(model.parameters())

    losses = []
    for images, labels in progress(t, batches(t, args.batch), "training", args.steps):
        images = put(args, images.reshape(-1, 64))
        labels = put(args, labels)

        loss = F.cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        average_gradients(t, parameters)
        for parameter in parameters:
            parameter.data -= args.lr * parameter.grad

        mean = np.array([loss.item()])
        all_reduce(t, mean)
        losses.append(mean[0] / t.size)

    weights = [host(parameter).reshape(-1) for parameter in parameters]
    return np.array(losses), np.concatenate(weights)


def film(t):
    """Returns the number of ranks that are summed in each chunk: an array (2p-1, p).

    Row 0 is for the start. Row s is for the time after step s."""
    x = np.ones(t.size)
    frames = []

    def sendrecv(*message):
        frames.append(x.copy())
        return t.sendrecv(*message)

    filmed = SimpleNamespace(rank=t.rank, size=t.size, sendrecv=sendrecv)
    all_reduce(filmed, x)
    return np.array([*frames, x])


def count_an_all_reduce(t, args, table, n):
    """Does one all-reduce of n float32 numbers. Compares its result, its messages, its bytes and
    its seconds with the theory."""
    p, r = t.size, t.rank
    x = np.arange(n, dtype=np.float32) % 1000  # the sums of small integers are exact
    total = p * x + p * (p - 1) // 2  # rank r contributes x + r
    x = put(args, x + r)

    ledger = Ledger(t)
    before = t.time()
    all_reduce(ledger, x)
    time_s = t.time() - before

    error = np.abs(host(x) - total).max()
    table.row(f"n = {n:,}: largest error", error, 0.0, "exact")

    messages = 2 * (p - 1)
    table.row(f"n = {n:,}: messages sent by a rank", ledger.messages_sent, messages, "exact")

    K = 4 * n
    sent = ledger.bytes_sent
    theory = 2 * K - 4 * chunks.size(n, p, r + 1) - 4 * chunks.size(n, p, r + 2)
    table.row(f"n = {n:,}: bytes sent by this rank", sent, theory, "exact")

    all_sent = gather(t, sent)
    if r == 0:
        table.row(f"n = {n:,}: bytes sent by all ranks", sum(all_sent), 2 * (p - 1) * K, "exact")

    if args.sim and p > 1 and n % p == 0:
        # the clock adds many float64 numbers and the formula multiplies once, so rounding differs
        theory = 2 * (p - 1) * (args.alpha + K / p * args.beta)
        table.modelled(f"n = {n:,}: seconds", time_s, theory, "rel<1e-9")


def main(t, args):
    table = Table(t)
    p, r = t.size, t.rank
    each = per_rank(t, args.batch)

    say(t, f"1. A ring all-reduce of {args.n:,} float32, then of {args.n + 3:,}, on {p} ranks.")
    for n in (args.n, args.n + 3):  # with the second n the chunks have unequal sizes
        count_an_all_reduce(t, args, table, n)

    if p > 1:
        say(t, f"2. Each rank sends {args.n_shift:,} float32 to the right, with blocking calls.")
        out = put(args, np.full(args.n_shift, r, np.float32))
        into = put(args, np.full(args.n_shift, -1, np.float32))
        shift(t, out, into)
        table.row("number received from the left", int(into.min()), (r - 1) % p, "exact")

    say(t, f"3. {args.steps} steps on the digits: {p} ranks x {each}, and 1 rank x {args.batch}.")
    losses, weights = train(t, args)
    films = gather(t, film(t))
    all_weights = gather(t, weights.tobytes())
    if r == 0:
        table.row("number of different weights on the ranks", len(set(all_weights)), 1, "exact")

        alone, _ = train(t.subgroup([0]), args)
        # the two runs add float32 numbers in different orders, so the seventh digit differs
        table.row("largest difference from the loss of one rank", np.abs(losses - alone).max(),
                  0.0, "abs<1e-6")
        picture(t, args, draw, films, losses, alone)
    return table


def draw(plt, films, losses, alone):
    """Draws the number of ranks that are summed in each chunk (above), and two losses (below)."""
    p = len(films)
    figure = plt.figure(figsize=(12, 7.2))
    above, below = figure.subfigures(2, 1, height_ratios=(1, 1.1))
    above.suptitle(f"Ring all-reduce: how many of the {p} ranks are summed in each chunk")
    panels = above.subplots(1, min(p, 4), squeeze=False, sharey=True)[0]  # 5 panels are too narrow
    shades = {"cmap": plt.get_cmap("YlGnBu", p), "vmin": 0.5, "vmax": p + 0.5}
    for r, (axes, counts) in enumerate(zip(panels, films, strict=False)):
        cells = axes.pcolormesh(counts.T, **shades, edgecolors="white", linewidth=2)
        for (step, c), count in np.ndenumerate(counts if p <= 6 else counts[:0]):
            colour = "white" if count > 0.55 * p else "black"
            axes.text(step + 0.5, c + 0.5, f"{count:.0f}", color=colour, ha="center", va="center")
        steps = range(0, 2 * p - 1, max(1, p // 4))
        axes.set_xticks([s + 0.5 for s in steps], [str(s) if s else "start" for s in steps])
        axes.set_yticks([c + 0.5 for c in range(p)], range(p))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(f"rank {r}", pad=26)
        axes.set(xlabel="after step", ylabel="chunk" if r == 0 else "", ylim=(p, 0))
        if p > 1:
            axes.axvline(p, color=RED, linestyle=":")
            for x, name in ((p / 2 + 0.5, "reduce-scatter"), (1.5 * p - 0.5, "all-gather")):
                axes.text(x, -0.06, name, fontsize=10, color=RED, ha="center")
    above.colorbar(cells, ax=panels, label="ranks summed", ticks=range(1, p + 1, max(1, p // 8)))

    left, right = below.subplots(1, 2)
    left.plot(alone, color="#9ecae1", linewidth=7, label="1 rank, the whole batch")
    left.plot(losses, color=BLUE, linewidth=1.5, label=f"{p} ranks, 1/{p} of the batch each")
    left.set(title="Data parallel: the same loss ...", ylim=(0, None), xlabel="training step",
             ylabel="cross entropy (nats)")
    left.legend()
    difference = np.abs(losses - alone)
    differs = np.flatnonzero(difference)
    right.set(title="... except for the order of additions", xlabel="training step", yscale="log",
              ylabel="|difference| (nats)", xlim=(-1, len(losses)), ylim=(1e-9, 1e-5))
    right.plot(differs, difference[differs], "o", color=BLUE, markersize=5)
    line_at(right, "allowed: 1e-6", y=1e-6, at=0)
    same = f"not drawn: {len(losses) - len(differs)} steps without a difference"
    right.text(len(losses) - 1, 5e-6, same, ha="right", fontsize=10)
    return figure


OPTIONS = {
    "n": (1_000_000, "floats in the all-reduce"),
    "n_shift": (100_000, "floats in the shift of exercise 07b"),
    "steps": (60, "training steps"),
    "batch": (120, "samples per step, on all ranks together"),
    "lr": (0.5, "learning rate"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
