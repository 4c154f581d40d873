"""16  Fewer bytes: deep gradient compression, low rank, low precision.    60 minutes, needs: 07

Send a thousandth of the gradient's elements now, and keep the other elements for later steps.
Nothing is lost.

    mpirun -n 4 python tutorials/16_dgc.py            or: minidl run -n 4 tutorials/16_dgc.py
    python tutorials/16_dgc.py --sim 4                picture: out/16_dgc.png

Of L elements, top-k sends the k = rho L elements of largest magnitude, as pairs (index, value). On
a slow network this saves time. But with top-k alone training fails: small elements are never sent.
Four ideas solve this:

    error feedback          add the elements that were not sent           v = v + g
                            to the next gradient
    momentum correction     apply momentum before the top-k choice        u = m u + g;  v = v + u
    factor masking          clear the elements that were sent             u = v = 0 at these
    warm-up                 send more at first: the part that is not sent is 75 % of the elements,
                            then 93.75, 98.4375, 99.6, 99.9 %

This equation holds exactly: arrived + waiting = accumulated. Arrived is the sum of all that was
sent. Waiting is the sum of v over the ranks. Accumulated is the sum of all u so far, over the
ranks.

How many bytes does top-k save? Every rank needs every rank's pairs, and each pair has 8 bytes:

    dense ring     2 (p-1)/p 4L        sparse     (p-1) 8k        gain  L / (p k) = 1 / (p rho)

With rho = 0.001 the gain is 125 on 8 ranks, not 1,000. On 1,000 ranks there is no gain.

Two other methods send less, with the same error feedback. One method rounds each number to int8, or
to one bit. The other method, PowerSGD, sends thin matrices. Let the n x m matrix A be gradient +
residual. Q is an m x r matrix, equal on all ranks. The ranks sum P = A Q and make its columns
orthonormal. Then they sum A'P (A' is A transposed). P and A'P are r (n + m) numbers on any number
of ranks. The two sums are all-reduces, because A Q and A'P are linear in A.

Papers: Lin et al. 2018 (arXiv 1712.01887); Vogels et al. 2019 (PowerSGD, arXiv 1905.13727).
Exercises: `minidl exercise 16` writes work/16_dgc.py with the marked regions empty;
`minidl check 16` grades it.
"""

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import Ledger, codec, compressed, ring
from minidl.course.out import BLUE, GREY, RED
from minidl.course.tutorial import Table, launch, picture, progress, put, say
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel import DGC, Compressed, DataParallel, ErrorFeedback, PowerSGD


def select(u, v, g, k, m):
    """Does one rank's step of deep gradient compression. Returns (indices, values) of k elements.

    u: velocities. v: the sum that waits to be sent. Both are 1-d and change in place.
    g: this step's gradient. k: elements to send. m: momentum."""
    # >>> exercise 16a: momentum correction and factor masking
    # First u = m u + g, then v = v + u, both in place. Choose the k elements of v with the largest
    # magnitude (np.argpartition finds them without sorting). Return their indices, and the values
    # of v at these indices. Set v and u to 0 at these indices: the elements have been sent.
    u *= m
    u += g
    v += u
    index = np.argpartition(-np.abs(v), k - 1)[:k]
    value = v[index]
    u[index] = 0
    v[index] = 0
    return index, value
    # <<<


def low_rank(t, g, residual, q):
    """Does one rank's step of PowerSGD. Returns (the sum over the ranks, the next q).

    The sum, (n, m), is approximated by a product (n, r) @ (r, m). g: (n, m), this rank's gradient.
    residual: (n, m), changed in place. q: (m, r), equal on all ranks."""
    # >>> exercise 16b: a gradient as two thin matrices
    # This rank wants to send A = g + residual. Make q's columns orthonormal (np.linalg.qr). Sum
    # P = A q over the ranks, and make P's columns orthonormal. Then sum A'P over the ranks: this
    # sum is the next q. ring.all_reduce(t, x) sums x in place. Every rank returns P times (the sum
    # of A'P)'. The new residual is A - P (A'P)' with this rank's own A'P: keep it before you sum.
    a = g + residual
    p = a @ np.linalg.qr(q)[0]
    ring.all_reduce(t, p)
    p = np.linalg.qr(p)[0]
    own = a.T @ p
    residual[...] = a - p @ own.T
    total = ring.all_reduce(t, own.copy())
    return p @ total.T, total
    # <<<


def by_hand(t, args, table):
    """Checks that the exercises' functions lose nothing, and send the bytes of the formulas."""
    rng = np.random.default_rng([7, t.rank])
    top_k_by_hand(t, args, table, rng)
    rank_2_by_hand(t, table, rng)


def top_k_by_hand(t, args, table, rng):
    """Checks for top-k that arrived + waiting = accumulated.

    The gradients are integers and the momentum is 0.5, so that no sum is rounded."""
    n, p = args.n, t.size
    k = max(1, round(n * args.rho))
    ledger = Ledger(t)
    u, v = np.zeros(n), np.zeros(n)
    accumulated = np.zeros(n)
    arrived = np.zeros(n)
    for _ in range(6):
        g = rng.integers(-99, 100, n).astype(float)
        accumulated += 0.5 * u + g
        index, value = select(u, v, g, k, 0.5)
        ledger.reset()
        arrived += compressed.sparse_all_reduce(ledger, index, value, n, equal=True)
    waiting = ring.all_reduce(t, v.copy())
    total = ring.all_reduce(t, accumulated)
    error = np.abs(arrived + waiting - total).max()
    table.row("top-k: arrived + waiting - accumulated", error, 0.0, "exact")
    table.row("top-k: bytes of a step, 8 k (p-1)", ledger.bytes_sent, 8 * k * (p - 1), "exact")
    if p > 1 and n % p == 0:
        gain = ring.bytes_sent(n, 4, p, t.rank) / ledger.bytes_sent
        table.row("top-k: gain over the ring, L / (p k)", gain, n / (p * k), "rel<1e-12")


def rank_2_by_hand(t, table, rng):
    """Checks for PowerSGD that sent + residuals of all ranks = the sum of all gradients."""
    n, m, r = 30, 20, 2
    ledger = Ledger(t)
    sent = np.zeros((n, m))
    total = np.zeros((n, m))
    residual = np.zeros((n, m))
    q = np.random.default_rng(1).normal(size=(m, r))  # equal on all ranks
    for _ in range(6):
        g = rng.normal(size=(n, m))
        ledger.reset()
        update, q = low_rank(ledger, g, residual, q)
        sent += update
        total += ring.all_reduce(t, g)

    owed = ring.all_reduce(t, residual.copy())
    error = np.abs(sent + owed - total).max()
    table.row("rank 2: sent + residuals - sum of gradients", float(error), 0.0, "abs<1e-11")

    theory = ring.bytes_sent(r * n, 8, t.size, t.rank) + ring.bytes_sent(r * m, 8, t.size, t.rank)
    table.row("rank 2: bytes of a step, r (n + m) numbers", ledger.bytes_sent, theory, "exact")


class Forgetful(DGC):
    """Top-k without error feedback, for comparison: elements that are not sent are lost."""

    def reduce(self, t, bucket):
        super().reduce(t, bucket)
        bucket.own["residual"][...] = 0


def methods(args):
    """Returns {name: (its Method, the optimizer's momentum)}. The Method of "dense" is None: all
    elements are sent."""
    top = {"sparsity": 1 - args.keep, "min_size": 256}
    return {
        "dense": (None, 0.9),
        "top-k, the rest lost": (Forgetful(momentum=0, **top), 0.9),
        "top-k, error feedback": (DGC(momentum=0, **top), 0.9),
        "DGC": (DGC(momentum=0.9, stage_steps=max(1, args.steps // 10), **top), 0.0),
        "int8": (ErrorFeedback(codec.INT8), 0.9),
        "PowerSGD, rank 2": (PowerSGD(rank=2), 0.9),
    }


def train(t, args, name):
    """Trains on handwritten digits with the method `name`.

    Returns (losses, sent, counted, formula). losses: the losses on the whole training set, one for
    every 10 steps. sent: for each loss, the bytes that this rank had sent before. counted and
    formula: the bytes of all steps except the first, by the ledger and by the formula."""
    method, momentum = methods(args)[name]
    images, labels = datasets.digits()[0][:]
    t = Ledger(t)
    minidl.manual_seed(0)
    net = put(args, nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    model = DataParallel(net, t) if method is None else Compressed(net, t, method)
    optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=momentum)

    losses, sent = [], []
    formula = before = 0
    for step in range(args.steps):
        if step == 1:  # data parallelism sends the order of its buckets once, after the first step
            before = t.bytes_sent
            formula = 0
        formula += model.bytes_sent()

        order = np.random.default_rng(step).permutation(len(images))
        picked = order[t.rank::t.size][:16]
        x = put(args, images[picked])
        y = put(args, labels[picked])
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

        if step % 10 == 4 or step == args.steps - 1:
            with minidl.no_grad():
                loss = F.cross_entropy(net(put(args, images)), put(args, labels))
            losses.append(loss.item())
            sent.append(t.bytes_sent)
    model.close()
    return losses, sent, t.bytes_sent - before, formula


def main(t, args):
    table = Table(t)
    by_hand(t, args, table)

    for stage, percent in enumerate((75, 93.75, 98.4375, 99.6, 99.9)):
        found = 100 * DGC(stage_steps=1).sparsity_at(stage)
        table.row(f"warm-up, stage {stage}: sparsity in %", found, percent, "rel<1e-12")

    curves = {}
    for name in progress(t, list(methods(args)), "methods"):
        losses, sent, counted, formula = train(t, args, name)
        curves[name] = losses, sent
        table.row(f"{name}: bytes sent, without the first step", counted, formula, "exact")
    losses, sent = curves["dense"]
    dense = losses[-1]
    dense_bytes = max(1, sent[-1])
    # A model that guesses has the loss log 10. The bound is the dense loss, plus 2 % of the
    # difference of log 10 and the dense loss. The losses are almost 0, so 2 % of the dense loss
    # would be too strict.
    bound = dense + 0.02 * (np.log(10) - dense)
    for name, (losses, sent) in curves.items():
        fewer = dense_bytes / max(1, sent[-1])
        say(t, f"  {name:24} loss {losses[-1]:.4f}   {fewer:8.1f} times fewer bytes")
        if name in ("DGC", "int8", "PowerSGD, rank 2") and args.steps >= 300 and t.size > 1:
            table.row(f"{name}: loss (theory: dense + 2 % of its fall)", losses[-1], bound, "<=")
    picture(t, args, draw, curves, t.size, args)
    return table


OPTIONS = {
    "n": (40_000, "elements of the vector that the exercise's function compresses"),
    "rho": (0.001, "the part of these elements that a step sends"),
    "keep": (0.02, "the part of the elements that training sends after the warm-up"),
    "steps": (300, "training steps of each method"),
    "lr": (0.15, "learning rate"),
}


def draw(plt, curves, p, args):
    """Draws two plots. Left: the loss over the bytes sent. Right: the bytes sent, over the number
    of ranks."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), width_ratios=[1.35, 1])
    green, purple = "#31a354", "#756bb1"
    styles = {"dense": (BLUE, "-"), "top-k, the rest lost": (GREY, "--"),
              "top-k, error feedback": ("#fdae6b", "-"), "DGC": (RED, "-"), "int8": (green, "-"),
              "PowerSGD, rank 2": (purple, "-")}
    for name, (losses, sent) in curves.items():
        colour, line = styles[name]
        # A single rank sends 0 bytes. A logarithmic axis has no 0, so 1 byte is drawn.
        left.plot(np.maximum(sent, 1) / 2**10, losses, line, color=colour, label=name)
    left.set(xscale="log", yscale="log", xlabel="KiB sent by a rank so far",
             ylabel="loss on the training set", title=f"{p} ranks, handwritten digits")
    left.legend(loc="lower left", fontsize=9)

    ranks = np.array([2**i for i in range(1, 13)])
    length = 25_000_000
    right.plot(ranks, 2 * (ranks - 1) / ranks * 4 * length / 2**20, color=BLUE, label="dense ring")
    for rho, line in ((0.01, ":"), (0.001, "-")):
        right.plot(ranks, (ranks - 1) * 8 * rho * length / 2**20, line, color=RED,
                   label=f"top-k, {100 * rho:g} %")
        right.axvline(1 / rho, color=GREY, linewidth=0.8)
    side = length**0.5
    right.plot(ranks, 2 * (ranks - 1) / ranks * 4 * 4 * 2 * side / 2**20, color=purple,
               label="PowerSGD, rank 4")
    right.set(xscale="log", yscale="log", xlabel="ranks", ylabel="MiB sent by a rank in a step",
              title="25 million elements: top-k gains only on few ranks")
    right.legend(loc="upper left", fontsize=9)
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
