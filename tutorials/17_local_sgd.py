"""17  Local SGD: average every H steps; start dense, then relax.    50 minutes, needs: 07

    mpirun -n 4 python tutorials/17_local_sgd.py      (or: minidl run -n 4 ...)
    python tutorials/17_local_sgd.py --sim 4          picture: out/17_local_sgd.png

Data parallelism averages p gradients at each step: 2(p-1)/p K bytes, every time. If instead each
rank takes H steps by itself, and only then the weights are averaged, one message of the same size
does for H steps. With H = 1 nothing has changed: the mean of the steps is the step of the mean, for
SGD. With H > 1 each rank goes downhill on its own samples, and the replicas part; how far they are
apart, the root mean square of |w_k - mean|, is a saw: it grows for H steps and falls to 0.

    post-local    data parallelism for t0 steps, while gradients turn fast, then rounds of H:
                  rounds = t0 + (T - t0)/H, of 2(p-1)/p K bytes each    (exercise 17a: when?)
    adaptive      H falls with the loss, for noise hurts late more than early. Two forms are about:
                  H = ceil(H0 sqrt(r)) in the paper, ceil(sqrt(H0 r)) in PaddlePaddle's optimizer,
                  with r = lr0 loss / (lr loss0); this script prints both, and trains with the first
    DiLoCo        the mean movement of a round, w - mean of w_k, as a gradient: an outer SGD with
                  Nesterov's momentum steps on it (exercise 17b), and H may be hundreds

Papers: Stich 2019 (arXiv 1805.09767); Lin et al. 2020 (1808.07217), post-local; Wang & Joshi 2019
(1810.08313), adaptive; Douillard et al. 2023 (2311.08105), DiLoCo.
Exercises: `minidl exercise 17` writes work/17_local_sgd.py with the marked regions empty;
`minidl check 17` grades it.
"""

from functools import partial

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import Ledger, ring
from minidl.course.out import BLUE, GREEN, GREY, ORANGE
from minidl.course.tutorial import Table, host, launch, picture, put, say
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.parallel import DataParallel, DiLoCo, LocalSGD
from minidl.parallel.data import header
from minidl.parallel.data.local_sgd import h0_inside, h0_outside


def plan(rates, period):
    """What ranks send after each step: a list of "gradients", "weights" and None.

    rates     the learning rate of each step; it may climb at first (warm-up)
    period    H"""
    # >>> exercise 17a: post-local SGD
    # Until the rate falls for the first time, gradients are averaged at each step. From the first
    # step with a rate below the one before it, ranks go by themselves: that step is the first of a
    # round of `period` steps, and weights are averaged after the last step of each round.
    decays = [i for i in range(1, len(rates)) if rates[i] < rates[i - 1]]
    start = decays[0] if decays else len(rates)
    rounds = ["weights" if (i + 1) % period == 0 else None for i in range(len(rates) - start)]
    return ["gradients"] * start + rounds
    # <<<


def outer_step(w, replicas, v, lr, momentum):
    """(w, v) after DiLoCo's outer step, new arrays.

    w         what all ranks began the round with
    replicas  what each rank has now, a list of arrays
    v         the outer momentum; zeros at first"""
    # >>> exercise 17b: DiLoCo's outer step
    # The pseudo-gradient is the mean over ranks of what they began with less what they have. On it
    # SGD steps with Nesterov's momentum, as PyTorch does:
    # v = momentum v + d;  w = w - lr (d + momentum v), with the new v.
    d = np.mean([w - w_k for w_k in replicas], axis=0)
    v = momentum * v + d
    return w - lr * (d + momentum * v), v
    # <<<


def network():
    minidl.manual_seed(0)  # the same weights on every rank
    return nn.MLP(64, 32, 10)


def batches(t, data, n_steps, size, seed=0):
    """This rank's batches: another draw on every rank."""
    images, labels = data
    draw = np.random.default_rng([seed, t.rank])
    for _ in range(n_steps):
        rows = draw.integers(0, len(images), size)
        yield images[rows], labels[rows]


def train(t, data, args, wrap, rates=None, look=None):
    """(wrapper, [mean loss over ranks of each step], [bytes sent after each step], [look(wrapper)
    after each step])."""
    ledger = Ledger(t)
    model = put(args, network())
    optimizer = optim.SGD(model.parameters(), lr=0.2)
    wrapped = wrap(model, ledger, optimizer)
    before = ledger.bytes_sent

    losses, sent, seen = [], [], []
    for step, (x, y) in enumerate(batches(t, data, args.steps, args.batch)):
        if rates:
            optimizer.param_groups[0]["lr"] = rates[step]
        x = put(args, minidl.tensor(x))
        y = put(args, minidl.tensor(y))
        loss = F.cross_entropy(wrapped(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if isinstance(wrapped, LocalSGD):
            wrapped.step(loss.item())  # its period may follow the loss
        elif isinstance(wrapped, DiLoCo):
            wrapped.step()

        losses.append(loss.item())
        sent.append(ledger.bytes_sent - before)
        if look:
            seen.append(look(wrapped))
    wrapped.close()
    mean_losses = ring.all_reduce(t, np.array(losses)) / t.size
    return wrapped, mean_losses, sent, seen


def vector(module):
    return np.concatenate([host(p).reshape(-1) for p in module.parameters()])


def data_parallel(model, t, optimizer):
    """Wrap a model by DataParallel, with all gradients in one bucket; it needs no optimizer."""
    return DataParallel(model, t, first_bucket_bytes=25 << 20)


def local_sgd(**options):
    """Returns what `train` calls to wrap a model: LocalSGD with these options."""
    return partial(LocalSGD, **options)


def bounded(H, most):
    """Returns the period that is nearest to H, from 1 to `most`."""
    return min(max(H, 1), most)


def in_rounds(t, data, args, table):
    """Compare rounds of 1 and of H with data parallelism. Returns {name: (losses, bytes sent)}."""
    H = args.period
    start = args.steps // 4
    runs = {}
    parallel, losses, sent, _ = train(t, data, args, data_parallel)
    runs["data parallelism"] = losses, sent
    a_step = sent[-1] - sent[-2]  # bytes
    one, *_ = train(t, data, args, local_sgd(period=1))
    apart = float(abs(vector(one.module) - vector(parallel.module)).max())
    table.row("H = 1: weights, unlike data parallelism's", apart, 0, "exact")

    rates = [0.2] * start + [0.18] * (args.steps - start)
    local, losses, sent, _ = train(t, data, args, local_sgd(period=H, start=start), rates)
    runs[f"post-local, H = {H}"] = losses, sent
    long_rounds = (args.steps - start) // H
    n_planned = sum(what is not None for what in plan(rates, H))
    for who, n_rounds in (("17a", n_planned), ("LocalSGD", local.rounds.n_rounds)):
        table.row(f"{who}: rounds, t0 + (T - t0)/H", n_rounds, start + long_rounds, "exact")

    K = local.bytes_sent()  # 2(p-1)/p K, to the byte where p does not divide the weights, too
    table.row("bytes of the rounds of H", sent[-1] - sent[start - 1], K * long_rounds, "exact")
    n_params = len(list(network().parameters()))
    ahead = header.bytes_sent(n_params, t.size, t.rank)
    table.row("bytes of a step of data parallelism, its header too", a_step, K + ahead, "exact")
    return runs


def divergence(t, data, args, table):
    """Returns how far the replicas are apart after each step."""
    H = args.period
    _, _, _, saw = train(t, data, args, local_sgd(period=H), look=LocalSGD.divergence)
    table.row("divergence after an average", max(saw[H - 1::H]), 0, "abs<1e-5")
    if t.size > 1:
        grows = bool((np.diff(saw[: H - 1]) > 0).all())
        table.row("it grows within the first round", grows, True, "exact")
    return saw


def adaptive_period(t, data, args, table):
    """Train with a period that follows the loss. Returns (losses, bytes sent)."""
    adaptive, losses, sent, _ = train(t, data, args, local_sgd(period=16, rule=h0_outside))
    ends = np.cumsum([16, *adaptive.rounds.periods][:-1]) - 1
    wanted = [bounded(h0_outside(16, 0.2, losses[15], 0.2, losses[end]), 16) for end in ends]
    other = [bounded(h0_inside(16, 0.2, losses[15], 0.2, losses[end]), 16) for end in ends]
    say(t, f"   H0 outside of the root, trained with: {adaptive.rounds.periods}")
    say(t, f"   H0 inside, PaddlePaddle's, would say: {other}")
    table.row("adaptive: H is the formula's", adaptive.rounds.periods == wanted, True, "exact")
    return losses, sent


def outer_optimizer(t, data, args, table, period):
    """Train by DiLoCo and compare its weights with `outer_step`'s. Returns (losses, bytes sent)."""
    diloco, losses, sent, _ = train(t, data, args, partial(DiLoCo, period=period))
    theory = diloco.bytes_sent(args.steps // period)
    table.row("DiLoCo's bytes", sent[-1], theory, "exact")
    mine = by_hand(t, data, args, period)
    apart = float(abs(mine - vector(diloco.module)).max())
    # float32, sums in another order over many steps
    table.row("17b: weights, unlike DiLoCo's", apart, 0, "abs<1e-4")
    return losses, sent


def main(t, args):
    table = Table(t)
    images, labels = datasets.digits()[0][:]
    data = np.asarray(images, np.float32).reshape(-1, 64), np.asarray(labels)
    H = args.period

    say(t, f"1. {args.steps} steps on the digits: data parallelism, and rounds of {H}.")
    runs = in_rounds(t, data, args, table)

    say(t, "2. How far the replicas are apart.")
    saw = divergence(t, data, args, table)

    say(t, "3. A period that follows the loss.")
    runs["adaptive"] = adaptive_period(t, data, args, table)

    say(t, "4. DiLoCo: an outer optimizer steps on the mean movement.")
    runs[f"DiLoCo, H = {2 * H}"] = outer_optimizer(t, data, args, table, 2 * H)

    for name, (losses, sent) in runs.items():
        table.row(f"{name}: mean loss of the last {H} steps", float(np.mean(losses[-H:])))
        table.row(f"{name}: MB sent", sent[-1] / 1e6)
    picture(t, args, draw, runs, saw, H)
    return table


def by_hand(t, data, args, period):
    """DiLoCo with `outer_step`; each rank gathers all replicas, to see them."""
    model = network()
    optimizer = optim.SGD(model.parameters(), lr=0.2)
    w = vector(model)
    v = np.zeros_like(w)
    for step, (x, y) in enumerate(batches(t, data, args.steps, args.batch), 1):
        F.cross_entropy(model(minidl.tensor(x)), minidl.tensor(y)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % period == 0:
            every = np.zeros((t.size, len(w)), w.dtype)
            every[t.rank] = vector(model)
            ring.all_reduce(t, every)  # zeros elsewhere: a gather
            w, v = outer_step(w, list(every), v, lr=0.7, momentum=0.9)
            ends = np.cumsum([p.numel() for p in model.parameters()])
            for p, part in zip(model.parameters(), np.split(w, ends[:-1]), strict=True):
                p.array[...] = part.reshape(p.shape)
    return vector(model)


def draw(plt, runs, saw, H):
    """The saw of divergence; the loss over steps, and over bytes."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(17, 5))
    left.plot(np.arange(1, len(saw) + 1), saw, color=BLUE)
    for end in range(H, len(saw) + 1, H):
        left.axvline(end, color=GREY, linewidth=0.5)
    left.set(xlabel="step", ylabel="root mean square of $|w_k - \\bar w|$",
             title=f"Replicas part for H = {H} steps, and meet")
    for (name, (losses, sent)), colour in zip(runs.items(), (GREY, BLUE, GREEN, ORANGE)):
        smooth = np.convolve(losses, np.ones(H) / H, "valid")
        middle.semilogy(np.arange(H, len(losses) + 1), smooth, color=colour, label=name)
        right.loglog(np.maximum(sent[H - 1:], 1e3) / np.float64(1e6), smooth, color=colour,
                     label=name)
    middle.set(xlabel="step", ylabel="loss", title="A step is worth about as much")
    right.set(xlabel="MB sent by a rank", ylabel="loss", title="A byte is worth more")
    middle.legend()
    return figure


OPTIONS = {
    "steps": (128, "steps of each rank; a multiple of 8 periods"),
    "batch": (16, "samples of a rank's step"),
    "period": (8, "H"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
