"""17  Local SGD: average the weights only every H steps.    50 minutes, needs: 07

    mpirun -n 4 python tutorials/17_local_sgd.py      (or: minidl run -n 4 ...)
    python tutorials/17_local_sgd.py --sim 4          picture: out/17_local_sgd.png

In data parallelism, p ranks average their gradients at each step. If the gradients have K bytes, a
rank sends 2(p-1)/p K bytes. In local SGD each rank takes H steps alone. Then the ranks average
their weights. So one all-reduce of the same size is enough for H steps. With H = 1 and plain SGD
the result is the same as with data parallelism: the mean of the ranks' steps is the step of the
mean gradient. With H > 1 each rank trains on its own samples, and the ranks' weights become
different. Let w_k be the weights of rank k. The distance of the ranks is the root mean square of
|w_k - mean|. The distance grows for H steps. The average makes it 0 again.

    post-local    data parallelism for the first t0 of T steps, while gradients change fast. The
                  other steps are in rounds of H steps. So a rank sends t0 + (T - t0)/H times, each
                  time 2(p-1)/p K bytes (exercise 17a)
    adaptive      H falls with the loss, because late in training noise hurts more. lr is the
                  learning rate, and r = lr0 loss / (lr loss0). H0, lr0 and loss0 are the values of
                  the first round. In the paper, H = ceil(H0 sqrt(r)). In PaddlePaddle's optimizer,
                  H = ceil(sqrt(H0 r)). This script prints both values of H, and trains with the
                  paper's value
    DiLoCo        a round starts with the weights w. DiLoCo takes the difference w - mean of w_k as
                  a gradient. An outer SGD with Nesterov's momentum makes a step with this gradient
                  (exercise 17b). H may be hundreds

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
    """Returns a list with an entry for each step: what the ranks average in or after this step.

    An entry is "gradients", "weights", or None if they average nothing.
    rates     the learning rate of each step; it may rise at first (warm-up)
    period    H, the number of steps in a round"""
    # >>> exercise 17a: post-local SGD
    # Until the rate falls for the first time, the ranks average gradients at each step. The first
    # step whose rate is lower than the rate of the step before it begins the first round of
    # `period` steps. In a round each rank trains alone. After the last step of each round the ranks
    # average weights.
    decays = [i for i in range(1, len(rates)) if rates[i] < rates[i - 1]]
    start = decays[0] if decays else len(rates)
    rounds = ["weights" if (i + 1) % period == 0 else None for i in range(len(rates) - start)]
    return ["gradients"] * start + rounds
    # <<<


def outer_step(w, replicas, v, lr, momentum):
    """Returns (w, v) after DiLoCo's outer step, as new arrays.

    w         the weights that all ranks had at the start of the round
    replicas  the weights of each rank now, a list of arrays
    v         the outer momentum; zeros at first"""
    # >>> exercise 17b: DiLoCo's outer step
    # For each rank, subtract the rank's weights from w. The mean of these differences over the
    # ranks is d, the pseudo-gradient. Then make a step of SGD with Nesterov's momentum, as in
    # PyTorch: first v = momentum v + d, then w = w - lr (d + momentum v) with the new v.
    d = np.mean([w - w_k for w_k in replicas], axis=0)
    v = momentum * v + d
    return w - lr * (d + momentum * v), v
    # <<<


def network():
    minidl.manual_seed(0)  # the same weights on every rank
    return nn.MLP(64, 32, 10)


def batches(t, data, n_steps, size, seed=0):
    """Yields n_steps batches (images, labels) for this rank. Each rank draws different samples."""
    images, labels = data
    draw = np.random.default_rng([seed, t.rank])
    for _ in range(n_steps):
        rows = draw.integers(0, len(images), size)
        yield images[rows], labels[rows]


def train(t, data, args, wrap, rates=None, look=None):
    """Makes a model and an optimizer, wraps the model by wrap(model, t, optimizer), and trains the
    wrapped model. Returns (wrapped model, losses, sent, seen).

    losses, sent and seen have an entry for each step. losses: the mean loss of the ranks. sent: the
    bytes that this rank has sent so far. seen: the result of look(wrapped model). Without `look`,
    seen is empty. rates: the learning rate of each step; if None, 0.2 in every step."""
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
            wrapped.step(loss.item())  # the number of steps in a round may depend on the loss
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
    """Returns the model in DataParallel, with all gradients in one bucket."""
    return DataParallel(model, t, first_bucket_bytes=25 << 20)


def local_sgd(**options):
    """Returns a function for train(). The function wraps a model in LocalSGD with these options."""
    return partial(LocalSGD, **options)


def bounded(H, most):
    """Returns H, but at least 1 and at most `most`."""
    return min(max(H, 1), most)


def in_rounds(t, data, args, table):
    """Trains with local SGD in rounds of 1 step and of H steps. Compares it with data parallelism.

    Adds the comparisons to the table. Returns {name: (losses, bytes sent)}."""
    H = args.period
    start = args.steps // 4
    runs = {}
    parallel, losses, sent, _ = train(t, data, args, data_parallel)
    runs["data parallelism"] = losses, sent
    a_step = sent[-1] - sent[-2]  # bytes of one step
    one, *_ = train(t, data, args, local_sgd(period=1))
    apart = float(abs(vector(one.module) - vector(parallel.module)).max())
    table.row("H = 1: weights, difference from data parallelism", apart, 0, "exact")

    rates = [0.2] * start + [0.18] * (args.steps - start)
    local, losses, sent, _ = train(t, data, args, local_sgd(period=H, start=start), rates)
    runs[f"post-local, H = {H}"] = losses, sent
    long_rounds = (args.steps - start) // H
    n_planned = sum(what is not None for what in plan(rates, H))
    for who, n_rounds in (("17a", n_planned), ("LocalSGD", local.rounds.n_rounds)):
        table.row(f"{who}: rounds, t0 + (T - t0)/H", n_rounds, start + long_rounds, "exact")

    # In theory a rank sends 2(p-1)/p K bytes in a round. bytes_sent() is exact even if p does not
    # divide the number of weights.
    K = local.bytes_sent()
    table.row("bytes of the rounds of H steps", sent[-1] - sent[start - 1], K * long_rounds,
              "exact")
    n_params = len(list(network().parameters()))
    ahead = header.bytes_sent(n_params, t.size, t.rank)
    table.row("bytes of a step of data parallelism, with its header", a_step, K + ahead, "exact")
    return runs


def divergence(t, data, args, table):
    """Returns the distance of the replicas after each step.

    Checks that the distance grows within a round, and that it is 0 after an average."""
    H = args.period
    _, _, _, saw = train(t, data, args, local_sgd(period=H), look=LocalSGD.divergence)
    table.row("divergence after an average", max(saw[H - 1::H]), 0, "abs<1e-5")
    if t.size > 1:
        grows = bool((np.diff(saw[: H - 1]) > 0).all())
        table.row("divergence grows within the first round", grows, True, "exact")
    return saw


def adaptive_period(t, data, args, table):
    """Trains with an H that falls with the loss. Returns (losses, bytes sent)."""
    adaptive, losses, sent, _ = train(t, data, args, local_sgd(period=16, rule=h0_outside))
    ends = np.cumsum([16, *adaptive.rounds.periods][:-1]) - 1
    wanted = [bounded(h0_outside(16, 0.2, losses[15], 0.2, losses[end]), 16) for end in ends]
    other = [bounded(h0_inside(16, 0.2, losses[15], 0.2, losses[end]), 16) for end in ends]
    say(t, f"   periods with H0 outside of the root, used here:       {adaptive.rounds.periods}")
    say(t, f"   periods with H0 inside the root, as in PaddlePaddle:  {other}")
    table.row("adaptive: H is the formula's", adaptive.rounds.periods == wanted, True, "exact")
    return losses, sent


def outer_optimizer(t, data, args, table, period):
    """Trains with DiLoCo. Compares the final weights with the weights of a training with
    outer_step().

    Returns (losses, bytes sent) of DiLoCo."""
    diloco, losses, sent, _ = train(t, data, args, partial(DiLoCo, period=period))
    theory = diloco.bytes_sent(args.steps // period)
    table.row("DiLoCo's bytes", sent[-1], theory, "exact")
    mine = by_hand(t, data, args, period)
    apart = float(abs(mine - vector(diloco.module)).max())
    # Both trainings are in float32, and they add numbers in a different order.
    table.row("17b: weights, difference from DiLoCo's", apart, 0, "abs<1e-4")
    return losses, sent


def main(t, args):
    table = Table(t)
    images, labels = datasets.digits()[0][:]
    data = np.asarray(images, np.float32).reshape(-1, 64), np.asarray(labels)
    H = args.period

    say(t, f"1. {args.steps} steps on the digits: data parallelism, and rounds of {H} steps.")
    runs = in_rounds(t, data, args, table)

    say(t, "2. The distance of the replicas.")
    saw = divergence(t, data, args, table)

    say(t, "3. A period that follows the loss.")
    runs["adaptive"] = adaptive_period(t, data, args, table)

    say(t, "4. DiLoCo: an outer optimizer makes a step with the mean movement.")
    runs[f"DiLoCo, H = {2 * H}"] = outer_optimizer(t, data, args, table, 2 * H)

    for name, (losses, sent) in runs.items():
        table.row(f"{name}: mean loss of the last {H} steps", float(np.mean(losses[-H:])))
        table.row(f"{name}: MB sent", sent[-1] / 1e6)
    picture(t, args, draw, runs, saw, H)
    return table


def by_hand(t, data, args, period):
    """Trains with outer_step(), the exercise's DiLoCo. Returns the weights as a vector.

    Every rank gathers the weights of all ranks, because outer_step() needs all of them."""
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
            ring.all_reduce(t, every)  # gathers the rows; each row is 0 on all ranks except one
            w, v = outer_step(w, list(every), v, lr=0.7, momentum=0.9)
            ends = np.cumsum([p.numel() for p in model.parameters()])
            for p, part in zip(model.parameters(), np.split(w, ends[:-1]), strict=True):
                p.array[...] = part.reshape(p.shape)
    return vector(model)


def draw(plt, runs, saw, H):
    """Draws three plots: the divergence over steps, the loss over steps, the loss over bytes."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(17, 5))
    left.plot(np.arange(1, len(saw) + 1), saw, color=BLUE)
    for end in range(H, len(saw) + 1, H):
        left.axvline(end, color=GREY, linewidth=0.5)
    left.set(xlabel="step", ylabel="root mean square of $|w_k - \\bar w|$",
             title=f"Distance of the replicas, averaged every {H} steps")
    for (name, (losses, sent)), colour in zip(runs.items(), (GREY, BLUE, GREEN, ORANGE)):
        smooth = np.convolve(losses, np.ones(H) / H, "valid")
        middle.semilogy(np.arange(H, len(losses) + 1), smooth, color=colour, label=name)
        right.loglog(np.maximum(sent[H - 1:], 1e3) / np.float64(1e6), smooth, color=colour,
                     label=name)
    middle.set(xlabel="step", ylabel="loss", title="Per step, the loss falls about equally fast")
    right.set(xlabel="MB sent by a rank", ylabel="loss",
              title="Per byte, local SGD falls faster")
    middle.legend()
    return figure


OPTIONS = {
    "steps": (128, "number of steps of each rank; a multiple of 8 periods"),
    "batch": (16, "number of samples in a step on each rank"),
    "period": (8, "H, the number of steps in a round"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
