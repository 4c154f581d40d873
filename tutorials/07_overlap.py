"""07  Buckets: send gradients while backward computes the others.   60 minutes, needs: 06

Small buckets start to travel early, and each pays a latency: there is a best size.

    mpirun -n 4 python tutorials/07_overlap.py        or: minidl run -n 4 tutorials/07_overlap.py
    python tutorials/07_overlap.py --sim 4            picture: out/07_overlap.png
                                                      trace for ui.perfetto.dev: out/07_trace.json

Backward computes the gradient of the last layer first. As soon as it is there it can be averaged,
while backward goes on. But an all-reduce of every gradient by itself pays the latency of a ring
each time, and one of all gradients together starts when backward is over. So gradients travel in
buckets, each closed once it holds `cap` bytes. With p ranks, k equal buckets of
n bytes in all, alpha seconds per message and beta per byte (tutorial 06):

    one all-reduce       a + b/k     where a = 2 (p-1) alpha  and  b = 2 (p-1)/p n beta
    all of them          k a + b     the bytes are the same for any k, the latencies are not

If backward takes C seconds and its gradients come evenly, bucket j is full at j C/k, and waits
until the wire is free. Either the wire waits for backward, then the last bucket alone is late; or
backward is ahead, then all buckets queue behind the first:

    T(k) = max( C + a + b/k ,  C/k + k a + b )        exposed time = T(k) - C

The first falls with k, the second rises: in between lies the best k. Where C > b, they meet at
k = (C - b)/a.

Paper: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020 (arXiv 2006.15704), section 3.2.
Exercises: `minidl exercise 07` writes work/07_overlap.py with the marked regions empty;
`minidl check 07` grades it.
"""

import itertools
from types import SimpleNamespace

import numpy as np

import minidl
from minidl import nn
from minidl.comm import ring, simulate
from minidl.comm.background import Background
from minidl.comm.ledger import Ledger
from minidl.course.out import BLUE, GREY, RED, arrow, lanes, line_at
from minidl.data import DataLoader, DistributedSampler, datasets
from minidl.nn import functional as F
from minidl.timeline import Timeline
from minidl.tutorial import (
    Table, WrongOption, gather, host, launch, picture, progress, put, say, write,
)


def fill(sizes, cap):
    """Cut layers into buckets: lists of layer numbers, in the order in which they will be sent.

    sizes: bytes of each layer's gradient, first layer first. cap: bytes that close a bucket."""
    # >>> exercise 07a: fill the buckets in the order in which gradients come
    # Gradients come last layer first. Put them into the open bucket in this order; once it holds
    # `cap` bytes or more, close it and open the next. The last one may stay smaller.
    buckets, bucket = [], []
    for layer in reversed(range(len(sizes))):
        bucket.append(layer)
        if sum(sizes[i] for i in bucket) >= cap:
            buckets.append(bucket)
            bucket = []
    return buckets + [bucket] if bucket else buckets
    # <<<


class Averager:
    """Averages the gradients of `layers` over the ranks while backward runs: call `ready(i)` when
    layers[i].grad is complete, and `finish()` after backward."""

    def __init__(self, t, layers, cap):
        self.layers = layers
        self.buckets = fill([layer.grad.nbytes for layer in layers], cap)
        self.background = Background(t)  # one more thread; its jobs run one after the other
        self.arrived, self.jobs = set(), []
        self.spans = []  # (bucket, start, end) of every all-reduce

    def ready(self, i):
        """Layer i's gradient is complete on this rank."""
        self.arrived.add(i)
        # >>> exercise 07b: start the all-reduce of every bucket that is full
        # `self.jobs.append(self.background.submit(self.reduce, bucket))` starts one and returns at
        # once. A bucket is full when all its layers have arrived. Buckets must start in the order
        # of self.buckets on every rank, as that alone says which message belongs to which bucket:
        # on another rank gradients may arrive in another order. len(self.jobs) have started.
        while len(self.jobs) < len(self.buckets):
            bucket = self.buckets[len(self.jobs)]
            if not self.arrived.issuperset(bucket):
                break
            self.jobs.append(self.background.submit(self.reduce, bucket))
        # <<<

    def reduce(self, t, bucket):
        """In the background: one all-reduce of the bucket's gradients, then their mean back."""
        start = t.time()
        flat = np.concatenate([self.layers[i].grad.reshape(-1) for i in bucket])
        ring.all_reduce(t, flat)
        flat /= t.size
        for i in bucket:
            grad = self.layers[i].grad
            grad[...] = flat[: grad.size].reshape(grad.shape)
            flat = flat[grad.size :]
        self.spans.append((bucket, start, t.time()))

    def finish(self):
        """Wait for all buckets."""
        for job in self.jobs:
            job.wait()
        self.arrived, self.jobs = set(), []


def network():
    """Six hidden layers without bias; every gradient divides by 2, 3 and 4 ranks."""
    minidl.manual_seed(0)  # the same weights on every rank
    widths = [64, 96, 96, 96, 96, 96, 96, 10]
    layers = [nn.Linear(a, b, bias=False) for a, b in zip(widths, widths[1:], strict=False)]
    model = nn.Sequential(*[m for layer in layers for m in (layer, nn.Tanh())][:-1])
    return model, [layer.weight for layer in layers]


def train(t, args, steps, cap):
    """SGD on the digits with buckets of `cap` bytes: (gradients of the first step, seconds of a
    step, the Averager)."""
    batch, (model, weights) = args.batch, network()
    put(args, model)
    for w in weights:
        w.grad = put(args, np.zeros(w.shape, np.float32))  # the buckets need their sizes
    averager = Averager(t, weights, cap)
    for i, w in enumerate(weights):
        w.on_grad_ready(lambda _, i=i: averager.ready(i))
    digits = datasets.digits()[0]
    sampler = DistributedSampler(len(digits), t.rank, t.size, tail="drop")
    loader = DataLoader(digits, batch // t.size, sampler, drop_last=True)
    first, start = None, t.time()
    for images, labels in progress(t, itertools.cycle(loader), "training", steps):
        images, labels = put(args, images), put(args, labels)
        model.zero_grad()
        F.cross_entropy(model(images.reshape(-1, 64)), labels).backward()
        averager.finish()
        first = first or [w.grad.copy() for w in weights]
        for w in weights:
            w.data = w.data - 0.1 * w.grad
    return first, (t.time() - start) / steps, averager


def modelled_step(t, args, n_buckets):
    """One backward of args.layers equal layers on a modelled clock: (seconds of the step, (layer,
    start, end) of every layer, (bucket, start, end) of every all-reduce)."""
    n_elems = args.layer_kib * 256
    layers = [SimpleNamespace(grad=np.zeros(n_elems, np.float32)) for _ in range(args.layers)]
    averager = Averager(t, layers, args.layers * n_elems * 4 / n_buckets)
    spans = []
    for i in reversed(range(args.layers)):
        start = t.time()
        t.compute(args.layer_us * 1e-6)  # what backward of this layer takes
        spans.append((i, start, t.time()))
        averager.ready(i)
    averager.finish()
    return t.time(), spans, averager.spans


def main(t, args):
    p, r = t.size, t.rank
    if args.steps < 1 or args.batch % p or not all(v > 0 for v in (args.layers, args.layer_kib)):
        raise WrongOption(
            f"wanted --steps, --layers and --layer-kib of at least 1, and a --batch that {p} ranks "
            f"share; got {args.steps}, {args.layers}, {args.layer_kib} and {args.batch}"
        )
    table = Table(t)
    sizes = [4 * w.numel() for w in network()[1]]
    n = sum(sizes) // 4
    say(t, f"1. {args.steps} steps on the digits: {len(sizes)} layers, {4 * n:,} bytes.")
    grads, seconds = {}, {}
    for cap in (4 * n, 64 << 10, 1):  # one bucket; some; one for every layer
        ledger = Ledger(t)
        grads[cap], seconds[cap], averager = train(ledger, args, args.steps, cap)
        k = len(averager.buckets)
        sent = ledger.count(label="ring.all_reduce")
        calls = sent.messages_sent // (2 * (p - 1) * args.steps) if p > 1 else k
        name = f"buckets of {cap:,} B or more: "
        table.row(name + "all-reduces a step", calls, k, "exact")
        if n % p == 0:
            theory = 2 * (p - 1) * 4 * n // p  # whatever the cap
            table.row(name + "bytes sent a step", sent.bytes_sent // args.steps, theory, "exact")
        first_sent = averager.spans[0][0][0]
        table.row(name + "first layer to be sent", first_sent, len(sizes) - 1, "exact")
    flat = {cap: np.concatenate([host(g).reshape(-1) for g in gs]) for cap, gs in grads.items()}
    copies = gather(t, flat[1].tobytes())
    if r == 0:
        table.row("different gradients among the ranks", len(set(copies)), 1, "exact")
        alone = np.concatenate(
            [host(g).reshape(-1) for g in train(t.subgroup([0]), args, 1, 1)[0]]
        )
        for cap, got in flat.items():  # float32: the order of additions differs
            difference = float(np.abs(got - alone).max())
            table.row(f"gradients, {cap:,} B, unlike one rank's", difference, 0.0, "abs<1e-6")
    if not args.sim:
        for cap, step_s in seconds.items():
            table.row(f"wall time of a step, buckets of {cap:,} B, ms", 1000 * step_s)
    say(
        t,
        "   On one machine overlap gains nothing: ranks share cores, and what sends takes them\n"
        "   from what computes. A network card needs none; so the clock of part 2 is modelled.",
    )
    if r == 0:
        model_the_sweep(t, args, table, p if p > 1 else 4)
    return table


def model_the_sweep(t, args, table, p):
    """On rank 0: the step of equal layers for every number of equal buckets, on p simulated
    ranks; its rows and its picture."""
    n_bytes, backward_s = args.layers * args.layer_kib * 1024, args.layers * args.layer_us * 1e-6
    a, b = 2 * (p - 1) * args.alpha, 2 * (p - 1) / p * n_bytes * args.beta
    say(
        t,
        f"2. Modelled: {args.layers} layers of {args.layer_kib} KiB and {args.layer_us} us each, "
        f"{p} ranks;\n   alpha {args.alpha * 1e6:g} us, beta {args.beta * 1e9:g} ns per byte.",
    )
    steps = {
        k: simulate(p, modelled_step, args, k, alpha=args.alpha, beta=args.beta)[0]
        for k in range(1, args.layers + 1)
        if args.layers % k == 0
    }

    def branches(k):
        return backward_s + a + b / k, backward_s / k + k * a + b

    theory = {k: max(branches(k)) for k in steps}
    # to the picosecond: what is equal on paper shall be a tie, and the first one wins
    best = min(steps, key=lambda k: round(steps[k][0], 12))
    best_theory = min(theory, key=lambda k: round(theory[k], 12))
    comm_s = {k: sum(end - start for _, start, end in step[2]) for k, step in steps.items()}
    if args.layer_kib * 256 % p == 0:  # else the longest chunk sets the pace
        # float64: the clock adds up what the formula multiplies
        for k in (1, best, args.layers):
            name = f"k = {k}: seconds of "
            table.modelled(name + "the all-reduces", comm_s[k], k * a + b, "rel<1e-9")
            table.modelled(name + "the step", steps[k][0], theory[k], "rel<1e-9")
        table.modelled("best number of buckets", best, best_theory, "exact")
    if b < backward_s:
        meet = (backward_s - b) / a
        table.modelled("where the two branches of T(k) meet", best, meet, "factor<2")
    for k in (1, best):
        exposed = (steps[k][0] - backward_s) / comm_s[k]
        table.modelled(f"k = {k}: exposed share of the all-reduces", exposed)
    write_trace(steps[best])
    picture(t, draw, steps, branches, best, backward_s)


def write_trace(step):
    """The best step in Chrome's trace format."""
    _, layers, buckets = step
    timeline = Timeline()
    for i, start, end in layers:
        timeline.add("backward", f"layer {i}", start, end)
    for b, start, end in buckets:
        timeline.add("all-reduce", f"layers {b[-1]}-{b[0]}", start, end)
    write("07_trace.json", timeline.trace)


def draw(plt, steps, branches, best, backward_s):
    """Left: what backward and the wire do, for one bucket, the best number, and one per layer.
    Right: the step's time against the number of buckets."""
    shades = plt.get_cmap("viridis")
    figure = plt.figure(figsize=(13, 6.4))
    left, right = figure.subfigures(1, 2, width_ratios=[1.5, 1])
    shown, backward_ms = sorted({1, best, max(steps)}), 1e3 * backward_s
    panels = left.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, k in zip(panels, shown, strict=True):
        step_s, layers, buckets = steps[k]
        colour = {i: shades(0.08 + 0.84 * j / max(1, len(buckets) - 1))
                  for j, (bucket, _, _) in enumerate(buckets) for i in bucket}
        spans = [(0, i, start, end) for i, start, end in layers]
        spans += [(1, bucket[0], start, end) for bucket, start, end in buckets]
        lanes(axes, ["backward", "all-reduce"],
              [(lane, 1e3 * start, 1e3 * end, colour[i]) for lane, i, start, end in spans])
        end_ms = 1e3 * step_s
        axes.axvline(backward_ms, color=RED, linestyle=":", linewidth=1.5)
        arrow(axes, (backward_ms, 1.6), (end_ms, 1.6), RED, "<->")
        axes.text(end_ms, 1.6, f" exposed {end_ms - backward_ms:.2f} ms", color=RED, va="center",
                  fontsize=11)
        axes.set(ylim=(1.9, -0.5), xlim=(0, 1.27e3 * max(steps[k][0] for k in shown)))
        title = f"{k} buckets" if k > 1 else "1 bucket, no overlap"
        axes.set_title(f"{title}: {end_ms:.2f} ms", loc="left")
    panels[-1].set_xlabel("modelled time of a step (ms); one colour, one bucket")

    axes, ks = right.subplots(), list(steps)
    fine = np.geomspace(1, max(ks), 200)
    late, queue = (np.array(times) * 1e3 for times in zip(*map(branches, fine), strict=True))
    axes.plot(fine, np.maximum(late, queue), color="#9ecae1", linewidth=8, label="T(k)")
    axes.plot(fine, late, color=GREY, linewidth=1.2, label="C + a + b/k: the last is late")
    axes.plot(fine, queue, "--", color=GREY, linewidth=1.2, label="C/k + ka + b: all queue")
    axes.plot(ks, [1e3 * steps[k][0] for k in ks], "o", color=BLUE, label="simulated")
    axes.plot(best, 1e3 * steps[best][0], "o", color=RED, markersize=14, fillstyle="none")
    line_at(axes, "C: backward alone", y=backward_ms, at=0.03)
    axes.set(xscale="log", xlabel="buckets k", ylabel="modelled time of a step (ms)",
             ylim=(0, None), title=f"Too few or too many: best are {best}")
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.legend(loc="lower left")
    return figure


OPTIONS = {
    "steps": (10, "training steps for each size of bucket"),
    "batch": (120, "samples per step, on all ranks together"),
    "layers": (48, "layers of the modelled network"),
    "layer_kib": (36, "KiB of each of its gradients"),
    "layer_us": (70, "microseconds that backward of one layer takes"),
}

if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
