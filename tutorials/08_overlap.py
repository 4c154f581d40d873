"""08  Buckets: send some gradients while backward computes others.   60 minutes, needs: 07

A small bucket of gradients can be sent early. But each bucket costs a latency. So there is a best
size of buckets.

    mpirun -n 4 python tutorials/08_overlap.py        or: minidl run -n 4 tutorials/08_overlap.py
    python tutorials/08_overlap.py --sim 4            picture: out/08_overlap.png

Backward computes the gradient of the last layer first. The ranks can average this gradient while
backward goes on. Gradients are sent in buckets. A bucket is closed when it holds `cap` bytes. There
are p ranks, and k equal buckets with n bytes in all. A message costs alpha seconds, and a byte
costs beta seconds (tutorial 07):

    one all-reduce       a + b/k     where a = 2 (p-1) alpha  and  b = 2 (p-1)/p n beta
    all k all-reduces    k a + b     the bytes are the same for any k, but there are more latencies

If backward takes C seconds and gradients come evenly, bucket j is full at j C/k. Then it waits
until the network is free. There are two cases. If the network waits for backward, only the last
bucket is sent after backward. If backward is faster than the network, all buckets queue behind the
first bucket. T(k) is the time of a step:

    T(k) = max( C + a + b/k ,  C/k + k a + b )        exposed time = T(k) - C

The first term falls with k. The second term rises if k is large. If C > b, the two terms are equal
at k = (C - b)/a. The best k is near this value.

Paper: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020, arXiv 2006.15704. minidl's own code: minidl/parallel/data/bucket.py. Exercises:
`minidl exercise 08` writes work/08_overlap.py with its regions empty; `minidl check 08` grades it.
"""

import itertools
from types import SimpleNamespace

import numpy as np

import minidl
from minidl import nn
from minidl.comm import Background, Ledger, ring, simulate
from minidl.course.out import BLUE, GREY, RED, arrow, lanes, line_at
from minidl.course.tutorial import Table, gather, host, launch, per_rank, picture, put, say
from minidl.data import datasets
from minidl.nn import functional as F


def fill(sizes, cap):
    """Returns the buckets in the order in which they are sent. A bucket is a list of layer numbers.

    sizes: bytes of each layer's gradient, from the first layer to the last. cap: a bucket is closed
    when it has this number of bytes."""
    # >>> exercise 08a: fill the buckets in the order in which gradients come
    # The gradient of the last layer comes first. Put the layers into the open bucket in the order
    # in which their gradients come. When the bucket holds `cap` bytes or more, close it and open
    # the next one. The last bucket may be smaller.
    buckets, bucket = [], []
    for layer in reversed(range(len(sizes))):
        bucket.append(layer)
        if sum(sizes[i] for i in bucket) >= cap:
            buckets.append(bucket)
            bucket = []
    return buckets + [bucket] if bucket else buckets
    # <<<


class Averager:
    """Averages the gradients of `layers` over the ranks while backward runs.

    Call `ready(i)` when layers[i].grad is complete. Call `finish()` after backward."""

    def __init__(self, t, layers, cap):
        self.layers = layers
        self.buckets = fill([layer.grad.nbytes for layer in layers], cap)
        self.background = Background(t)  # a second thread, which runs its jobs in order
        self.arrived = set()
        self.jobs = []
        self.spans = []  # [(bucket, start, end)] of the all-reduces

    def ready(self, i):
        self.arrived.add(i)
        # >>> exercise 08b: start the all-reduce of every bucket that is full
        # `self.jobs.append(self.background.submit(self.reduce, bucket))` starts the all-reduce of a
        # bucket, and returns at once. A bucket is full when all its layers have arrived. Every rank
        # must start the buckets in the order of self.buckets, because only the order tells which
        # message belongs to which bucket. But gradients may arrive in another order on another
        # rank. len(self.jobs) is the number of buckets that have been started.
        while len(self.jobs) < len(self.buckets):
            bucket = self.buckets[len(self.jobs)]
            if not self.arrived.issuperset(bucket):
                break
            self.jobs.append(self.background.submit(self.reduce, bucket))
        # <<<

    def reduce(self, t, bucket):
        """Runs in the background: averages the bucket's gradients with one all-reduce."""
        start = t.time()
        flat = np.concatenate([self.layers[i].grad.array.reshape(-1) for i in bucket])
        ring.all_reduce(t, flat)
        flat /= t.size
        for i in bucket:
            grad = self.layers[i].grad.array
            grad[...] = flat[: grad.size].reshape(grad.shape)
            flat = flat[grad.size :]
        self.spans.append((bucket, start, t.time()))

    def finish(self):
        for job in self.jobs:
            job.wait()
        self.arrived = set()
        self.jobs = []


def network(args):
    """Returns a chain of seven linear layers without biases, with tanh after each layer except the
    last."""
    minidl.manual_seed(0)  # the same weights on every rank
    widths = [64] + 6 * [96] + [10]
    layers = []
    for n_in, n_out in itertools.pairwise(widths):
        layers += [nn.Linear(n_in, n_out, bias=False), nn.Tanh()]
    return put(args, nn.Sequential(*layers[:-1]))


def average(t, args, cap):
    """Runs backward on a batch of digits, args.steps times, with buckets of `cap` bytes.

    Returns (the averaged gradients, the mean seconds of a step, the Averager)."""
    model = network(args)
    weights = list(model.parameters())
    for w in weights:
        w.grad = put(args, np.zeros(w.shape, np.float32))  # fill() needs the gradient's size
    averager = Averager(t, weights, cap)
    for i, w in enumerate(weights):
        w.on_grad_ready(lambda _, i=i: averager.ready(i))

    each = per_rank(t, args.batch)
    images, labels = datasets.digits()[0][t.rank * each : (t.rank + 1) * each]
    images = put(args, images.reshape(-1, 64))
    labels = put(args, labels)

    start = t.time()
    for _ in range(args.steps):
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        averager.finish()
    step_s = (t.time() - start) / args.steps

    gradients = np.concatenate([host(w.grad).reshape(-1) for w in weights])
    return gradients, step_s, averager


def modelled_step(t, args, n_buckets):
    """Runs one backward of args.layers equal layers on a modelled clock.

    Returns (seconds of the step, [([layer], start, end)] of every layer's backward,
    [(bucket, start, end)] of every all-reduce)."""
    n_elems = args.layer_kib * 256 // t.size * t.size  # so that all p chunks have the same size
    layers = [SimpleNamespace(grad=minidl.zeros(n_elems)) for _ in range(args.layers)]
    cap = args.layers * n_elems * 4 / n_buckets  # bytes
    averager = Averager(t, layers, cap)

    spans = []
    for i in reversed(range(args.layers)):
        start = t.time()
        t.compute(args.layer_us * 1e-6)  # the time of this layer's backward
        spans.append(([i], start, t.time()))
        averager.ready(i)
    averager.finish()
    return t.time(), spans, averager.spans


def count_a_step(t, args, table, cap, alone):
    """Counts messages and bytes of a step with buckets of `cap` bytes. Adds rows to the table.

    alone: the gradients that one rank computes from the whole batch."""
    p = t.size
    ledger = Ledger(t)
    grads, step_s, averager = average(ledger, args, cap)
    k = len(averager.buckets)
    name = f"cap {cap:,} B, k = {k}: "

    sent = ledger.count(label="ring.all_reduce")
    messages = sent.messages_sent // args.steps
    table.row(name + "messages sent a step", messages, 2 * (p - 1) * k, "exact")
    if grads.size % p == 0:
        n_bytes = sent.bytes_sent // args.steps
        theory = 2 * (p - 1) * grads.nbytes // p  # the same for any cap
        table.row(name + "bytes sent a step", n_bytes, theory, "exact")

    first_bucket, _, _ = averager.spans[0]
    table.row(name + "first layer sent (0 to 6)", first_bucket[0], 6, "exact")

    copies = gather(t, grads.tobytes())
    if t.rank == 0:
        table.row(name + "number of different gradients on the ranks", len(set(copies)), 1, "exact")
        difference = np.abs(grads - alone).max()  # float32 numbers are added in another order
        table.row(name + "difference from one rank's gradients", difference, 0.0, "abs<1e-6")
    if not args.sim:
        table.row(name + "ms of wall time a step", 1000 * step_s)


def constants(args, p):
    """Returns C, a and b, in seconds, for modelled_step on p ranks. The formulas are at the top of
    this file."""
    n_bytes = args.layers * (args.layer_kib * 256 // p * p) * 4
    C = args.layers * args.layer_us * 1e-6
    a = 2 * (p - 1) * args.alpha
    b = 2 * (p - 1) * n_bytes // p * args.beta
    return C, a, b


def main(t, args):
    table = Table(t)
    p = t.size
    say(t, f"1. {args.steps} steps on {args.batch} digits, divided among {p} ranks.")
    alone = None
    if t.rank == 0:
        alone, _, _ = average(t.subgroup([0]), args, 1)
    for cap in (1 << 20, 64 << 10, 1):  # makes one bucket, a few buckets, or one for each layer
        count_a_step(t, args, table, cap, alone)
    say(t, "   On one machine overlap gains nothing: ranks share cores, and sending needs cores.\n"
           "   A network card needs no cores. So part 2 has a modelled clock.")
    if t.rank > 0:
        return table  # rank 0 simulates all p ranks
    if p == 1:
        p = 4
    n, kib, us = args.layers, args.layer_kib, args.layer_us
    say(t, f"2. Modelled: {n} layers of {kib} KiB and {us} us each, {p} ranks;\n"
           f"   alpha {args.alpha * 1e6:g} us, beta {args.beta * 1e9:g} ns per byte.")
    steps = {}  # {k: what modelled_step returns on rank 0}
    for k in range(1, n + 1):
        if n % k == 0:
            of_ranks = simulate(p, modelled_step, args, k, alpha=args.alpha, beta=args.beta)
            steps[k] = of_ranks[0]
    C, a, b = constants(args, p)

    def branches(k):
        return C + a + b / k, C / k + k * a + b

    # The times are rounded to a picosecond, so that values with equal formulas are equal. min takes
    # the first of equal values.
    best = min(steps, key=lambda k: round(steps[k][0], 12))
    best_theory = min(steps, key=lambda k: round(max(branches(k)), 12))
    for k in (1, best, n):
        step_s, _, all_reduces = steps[k]
        comm_s = sum(end - start for _, start, end in all_reduces)
        # the clock adds many float64 numbers and the formula multiplies once, so rounding differs
        table.modelled(f"k = {k}: seconds of all all-reduces", comm_s, k * a + b, "rel<1e-9")
        table.modelled(f"k = {k}: seconds of the step", step_s, max(branches(k)), "rel<1e-9")
    table.modelled("best number of buckets", best, best_theory, "exact")
    if b < C:
        table.modelled("best k (theory: k with equal terms)", best, (C - b) / a, "factor<2")
    picture(t, args, draw, steps, branches, best, C)
    return table


def draw(plt, steps, branches, best, backward_s):
    """Draws when backward and the all-reduces run: for one bucket, for the best number of buckets,
    and for one bucket a layer (left). Right: the time of a step for each number of buckets."""
    shades = plt.get_cmap("viridis")
    figure = plt.figure(figsize=(13, 6.4))
    left, right = figure.subfigures(1, 2, width_ratios=[1.5, 1])
    shown, backward_ms = sorted({1, best, max(steps)}), 1e3 * backward_s
    panels = left.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, k in zip(panels, shown, strict=True):
        step_s, layers, buckets = steps[k]
        colour = {i: shades(0.08 + 0.84 * j / max(1, len(buckets) - 1))
                  for j, (bucket, _, _) in enumerate(buckets) for i in bucket}
        lanes(axes, ["backward", "all-reduce"],
              [(lane, 1e3 * start, 1e3 * end, colour[group[0]])
               for lane, spans in enumerate([layers, buckets]) for group, start, end in spans])
        end_ms = 1e3 * step_s
        axes.axvline(backward_ms, color=RED, linestyle=":", linewidth=1.5)
        arrow(axes, (backward_ms, 1.6), (end_ms, 1.6), RED, "<->")
        axes.text(end_ms, 1.6, f" exposed {end_ms - backward_ms:.2f} ms", color=RED, va="center",
                  fontsize=11)
        axes.set(ylim=(1.9, -0.5), xlim=(0, 1.27e3 * max(steps[k][0] for k in shown)))
        title = f"{k} buckets" if k > 1 else "1 bucket, no overlap"
        axes.set_title(f"{title}: {end_ms:.2f} ms", loc="left")
    panels[-1].set_xlabel("modelled time of a step (ms). A colour for each bucket")

    axes, ks = right.subplots(), list(steps)
    fine = np.geomspace(1, max(ks), 200)
    late, queue = (np.array(times) * 1e3 for times in zip(*map(branches, fine), strict=True))
    axes.plot(fine, np.maximum(late, queue), color="#9ecae1", linewidth=8, label="T(k)")
    axes.plot(fine, late, color=GREY, linewidth=1.2, label="C + a + b/k: the last bucket is late")
    axes.plot(fine, queue, "--", color=GREY, linewidth=1.2, label="C/k + ka + b: all buckets queue")
    axes.plot(ks, [1e3 * steps[k][0] for k in ks], "o", color=BLUE, label="simulated")
    axes.plot(best, 1e3 * steps[best][0], "o", color=RED, markersize=14, fillstyle="none")
    line_at(axes, "C: backward alone", y=backward_ms, at=0.03)
    axes.set(xscale="log", xlabel="buckets k", ylabel="modelled time of a step (ms)",
             ylim=(0, None), title=f"Too few or too many: the best number is {best}")
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.legend(loc="lower left")
    return figure


OPTIONS = {
    "steps": (10, "training steps for each size of bucket"),
    "batch": (120, "samples per step, on all ranks together"),
    "layers": (48, "layers of the modelled network"),
    "layer_kib": (36, "KiB of each of these layers' gradients"),
    "layer_us": (70, "microseconds that backward of one layer takes"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
