"""05  Where the memory goes, and how to get it back.          60 minutes, needs: 01, 04

A weight costs 16 bytes before the first activation. Recompute runs one forward more, and of L
layers' activations holds 2 sqrt(L).

    python tutorials/05_memory.py                 one process; picture: out/05_memory.png

A model of X parameters, trained with Adam, holds

    fp32             weight 4   gradient 4                   m 4   v 4    =  16 X bytes
    fp16 + masters   weight 2   gradient 2   fp32 master 4   m 4   v 4    =  16 X bytes

and for backward what its functions saved: a chain of L layers keeps L results. Recompute cuts it
into k segments, keeps the input of each, and runs a segment again when backward comes to it:

    held at the most = (k - 1) inputs  +  L/k results of one segment  +  the result of all
                     = k + L/k  layers' results,    least for k = sqrt(L)

A forward costs 1 and a backward 2, so running every layer forward twice makes a step of 3 cost 4.
The second run must equal the first: dropout has to draw the same random numbers.

Papers: Rajbhandari et al., "ZeRO", 2020, arXiv 1910.02054, section 3; Chen et al., "Training deep
nets with sublinear memory cost", 2016, arXiv 1604.06174.
The library's own, in minidl/memory: ledger.py, predict.py, recompute.py, recompute_plan.py; another
way: offload.py; memory that is free but in pieces: fragmentation.py.
Exercises: `minidl exercise 05` writes work/05_memory.py with the marked regions empty;
`minidl check 05` grades it.
"""

import time

import numpy as np

import minidl
from minidl import amp, memory, nn, optim
from minidl.course.out import BLUE, RED, line_at
from minidl.data import datasets
from minidl.memory_predict import predict
from minidl.nn import functional as F
from minidl.recompute import recompute_sequential
from minidl.tutorial import Table, launch, picture, put, say

N_LAYERS = 16


class Recompute(minidl.Function):
    """A block of layers as one function of its input and parameters, which saves its input."""

    def forward(self, x, *parameters, block, leaves, generator):
        self.block, self.leaves, self.generator = block, leaves, generator
        self.place = generator.get_state()  # where its random numbers begin
        self.save(x)
        with minidl.no_grad():  # nothing inside is kept
            return block(minidl.Tensor(x)).data

    def backward(self, gy):
        (x,) = self.saved
        # >>> exercise 05b: run it again
        # Return the gradients of x and of self.leaves, the block's parameters, as one tuple:
        # minidl.grad([y], [tensors], [gy]) gives them, if y is the block's result on a Tensor of x
        # with requires_grad=True. The block may have dropout: its numbers must be those of the
        # first run (generator.get_state, set_state), and what others draw next must not change.
        now = self.generator.get_state()
        self.generator.set_state(self.place)
        x = minidl.Tensor(x, requires_grad=True)
        y = self.block(x)
        self.generator.set_state(now)
        return minidl.grad([y], [x, *self.leaves], [gy])
        # <<<


def recompute(layers, x):
    """layers[-1](...layers[0](x)), to be run again in backward."""
    block = nn.Sequential(*layers)
    leaves = list(block.parameters())
    generator = minidl.random.default_generator()
    return Recompute.apply(x, *leaves, block=block, leaves=leaves, generator=generator)


def run(layers, x, segments):
    """The chain of layers in segments, (start, stop, whether it is recomputed)."""
    for start, stop, again in segments:
        part = layers[start:stop]
        x = recompute(part, x) if again else nn.Sequential(*part)(x)
    return x


def equal_segments(n, k):
    return [(i * n // k, (i + 1) * n // k, True) for i in range(k)]


def peak_bytes(sizes, segments):
    """The most bytes that a step of the chain holds. sizes[i]: bytes of layer i's input;
    sizes[n]: of the result of all, which the caller holds."""
    n, held, peak = len(sizes) - 1, 0, 0
    for start, stop, again in segments:
        inside = sum(sizes[start : stop + 1])  # while backward is in it: its input, all its results
        result = sizes[n] if again or stop < n else 0  # the last one, if kept, is inside already
        peak = max(peak, held + inside + result)
        held += sizes[start] if again else sum(sizes[start:stop])
    return peak


def choose_segments(sizes, budget):
    """[(start, stop, recomputed)] that hold at most `budget` bytes (peak_bytes) and run as few
    layers twice as possible; None if there are none."""
    # >>> exercise 05a: segments for unequal layers under a budget
    # There are n = len(sizes) - 1 layers. Segments follow each other: (0, a, ...), (a, b, ...), ...
    # (..., n, ...). Trying all ways is enough here; recompute_plan.py in the library is faster.
    n, best = len(sizes) - 1, (len(sizes), None)

    def extend(segments, twice):
        nonlocal best
        start = segments[-1][1] if segments else 0
        if start == n and twice < best[0] and peak_bytes(sizes, segments) <= budget:
            best = twice, segments
        for stop in range(start + 1, n + 1):
            extend([*segments, (start, stop, False)], twice)
            extend([*segments, (start, stop, True)], twice + stop - start)

    extend([], 0)
    return best[1]
    # <<<


def chain(widths):
    """Layers that each save one thing, their result: tanh(W x)."""
    minidl.manual_seed(0)
    return [nn.Sequential(nn.Linear(a, b, bias=False), nn.Tanh())
            for a, b in zip(widths[:-1], widths[1:], strict=True)]


def measure(layers, x, segments):
    """(activations at the peak, layers run forward, gradients) of a forward and a backward."""
    forwards = []
    removes = [layer.register_forward_hook(lambda *_: forwards.append(1)) for layer in layers]
    parameters = [p for layer in layers for p in layer.parameters()]
    for p in parameters:
        p.grad = None
    with memory.record() as ledger:
        y = run(layers, x, segments)
        y.backward(np.ones_like(y.data))
    for remove in removes:
        remove()
    return ledger.most("activations"), len(forwards), [p.grad for p in parameters]


def states(t, args, table):
    """Part 1: 16 bytes a parameter, fp32 or fp16."""
    say(t, "1. A step of AdamW on a GPT: what is held after it.")
    ids = put(args, minidl.Generator(1).integers(0, 64, (2, 16)))
    for level, widths in (("O0", (4, 4, 0, 8)), ("O2", (2, 2, 4, 8))):
        model = put(args, nn.GPT(64, 16, n_layers=2, n_heads=2, width=32))
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        model, optimizer, scaler = amp.initialize(model, optimizer, level)
        scaler.scale(F.cross_entropy(model(ids).reshape(-1, 64), ids.reshape(-1))).backward()
        scaler.step(optimizer)
        n = sum(p.numel() for p in model.parameters())
        held = memory.totals(model, optimizer)
        for kind, width in zip(memory.STATES, widths, strict=True):
            table.row(f"{level}, X = {n:,}: {kind}", held[kind], width * n, "exact")
        table.row(f"{level}: all, 16 X", sum(held.values()), 16 * n, "exact")
    gpt2 = predict(1_500_000_000, precision="O2")["total"]
    table.row("GPT-2 of 1.5 billion, predicted: GB", gpt2 / 1e9, 24.0, "exact")


def segments_table(t, args, table):
    """Part 2: k + L/k, and what it costs."""
    n = N_LAYERS
    say(t, f"2. {n} equal layers in k recomputed segments.")
    layers = [put(args, layer) for layer in chain([args.width] * (n + 1))]
    x = put(args, minidl.Generator(2).normal(args.batch, args.width))
    x = minidl.Tensor(x, requires_grad=True)
    unit = x.data.nbytes
    plain, n_forwards, wanted = measure(layers, x, [(0, n, False)])
    table.row("all kept: layers whose results are held", plain / unit, n, "exact")
    peaks = {}
    for k in (1, 2, 4, 8, 16):
        peak, twice, gradients = measure(layers, x, equal_segments(n, k))
        peaks[k] = peak / unit
        table.row(f"k = {k}: layers whose results are held", peaks[k], k + n // k, "exact")
        differ = sum(int((g != w).sum()) for g, w in zip(gradients, wanted, strict=True))
        table.row(f"k = {k}: gradients that differ", differ, 0, "exact")
    # backward is two products where forward is one
    products = (twice + 2 * n) / (n_forwards + 2 * n)
    table.row("matrix products: recomputed / all kept", products, 4 / 3, "exact")
    seconds = {}
    for again in (False, True) * 5:
        start = time.perf_counter()
        measure(layers, x, equal_segments(n, 4) if again else [(0, n, False)])
        seconds.setdefault(again, []).append(time.perf_counter() - start)
    table.row("time: recomputed / all kept", min(seconds[True]) / min(seconds[False]), 4 / 3)
    y = recompute_sequential(layers, x, 4)
    for layer in layers:
        layer.zero_grad()
    y.backward(np.ones_like(y.data))
    library = [p.grad for layer in layers for p in layer.parameters()]
    differ = sum(int((g != w).sum()) for g, w in zip(library, wanted, strict=True))
    table.row("minidl.recompute: gradients that differ", differ, 0, "exact")
    return peaks


def unequal(t, args, table):
    """Part 3: segments under a budget."""
    widths = [64, 256, 256, 64, 16, 128, 128, 32, 96]
    layers = [put(args, layer) for layer in chain(widths)]
    x = put(args, minidl.Generator(3).normal(args.batch, widths[0]))
    x = minidl.Tensor(x, requires_grad=True)
    sizes = [4 * args.batch * width for width in widths]
    full = peak_bytes(sizes, [(0, len(layers), False)])
    budget = int(0.7 * full)
    say(t, f"3. {len(layers)} unequal layers that hold {full:,} bytes; allowed are {budget:,}.")
    segments = choose_segments(sizes, budget)
    peak = measure(layers, x, segments)[0] + sizes[0]  # to the ledger, x is an input
    table.row("chosen segments: bytes at the peak", peak, peak_bytes(sizes, segments), "exact")
    table.row("their bytes at the peak (theory: the budget)", peak, budget, "<=")
    thirds = peak_bytes(sizes, equal_segments(len(layers), 3))
    table.row("three equal segments: bytes at the peak", thirds)
    table.row("layers run twice, of 8", sum(b - a for a, b, again in segments if again))
    return sizes, segments, budget


def a_step(args, again, batch):
    """The ledger of a training step on the digits, in O2 with AdamW."""
    images, labels = (put(args, a) for a in datasets.digits()[0][:batch])
    minidl.manual_seed(0)
    layers = [nn.Linear(64, 128), nn.Tanh(),
              *(nn.Sequential(nn.Linear(128, 128), nn.Tanh()) for _ in range(N_LAYERS))]
    head, body = nn.Linear(128, 10), nn.Sequential(*layers)
    model = put(args, nn.Sequential(body, head))
    body.forward = lambda x: run(layers, x, [(0, 2, False), *(
        (a + 2, b + 2, again) for a, b, _ in equal_segments(N_LAYERS, 4))])
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, scaler = amp.initialize(model, optimizer, "O2", loss_scale=128.0)
    for _ in range(2):  # the first step makes the optimizer's state
        optimizer.zero_grad()
        with memory.record(model, optimizer) as ledger:
            loss = F.cross_entropy(model(minidl.Tensor(images.reshape(-1, 64))), labels)
            scaler.scale(loss).backward()
            del loss
            ledger.mark("backward done")
            scaler.step(optimizer)
            scaler.update()
    return ledger


def main(t, args):
    table = Table(t)
    states(t, args, table)
    peaks = segments_table(t, args, table)
    sizes, segments, budget = unequal(t, args, table)
    say(t, "4. A training step on the digits, all kept and recomputed.")
    ledgers = [a_step(args, again, 2 * args.batch) for again in (False, True)]
    for ledger, what in zip(ledgers, ("all kept", "recomputed"), strict=True):
        table.row(f"step, {what}: bytes at the peak", ledger.peak_bytes)
    picture(t, draw, ledgers, peaks, sizes, segments, budget)
    return table


def draw(plt, ledgers, peaks, sizes, segments, budget):
    """Above: a step's memory, all kept and recomputed. Below: k + L/k; unequal layers."""
    figure, (above, (left, right)) = plt.subplots(2, 2, figsize=(14, 9))
    colours = {"parameters": "#08519c", "gradients": "#fd8d3c", "master weights": "#3182bd",
               "optimizer": "#9ecae1", "inputs": "#bdbdbd", "activations": "#74c476",
               "temporary": "#e0c3e8", "workspace": "#fdae6b"}
    top = 1.4 * max(ledger.peak_bytes for ledger in ledgers) / 2**20
    titles = "A step that keeps all", "The same with 4 recomputed segments"
    for axes, ledger, title in zip(above, ledgers, titles, strict=True):
        kinds = [kind for kind in colours if ledger.most(kind)]
        bands = [[held[kind] / 2**20 for _, held in ledger.timeline] for kind in kinds]
        axes.stackplot(range(len(ledger.timeline)), bands, labels=kinds, step="post",
                       colors=[colours[kind] for kind in kinds])
        peak = ledger.peak_bytes / 2**20
        axes.plot(ledger.peak_at, peak, "v", color=RED)
        axes.text(ledger.peak_at, peak + 0.03 * top, f"{peak:.1f} MiB", color=RED, ha="center")
        axes.set(title=title, xlabel="events: arrays made and freed", ylabel="MiB held",
                 ylim=(0, top), xlim=(0, len(ledger.timeline) - 1))
    above[1].legend(*above[0].get_legend_handles_labels(), loc="upper left", fontsize=11, ncols=3,
                    reverse=True)

    k = np.linspace(1, N_LAYERS, 100)
    left.plot(k, k + N_LAYERS / k, color="#9ecae1", linewidth=5, label="k + L/k")
    left.plot(list(peaks), list(peaks.values()), "o", color=BLUE, markersize=9, label="counted")
    for x, y in peaks.items():
        left.text(x, y + 0.9, f"{y:.0f}", ha="center", color=BLUE)
    line_at(left, f"all kept: {N_LAYERS}", y=N_LAYERS, at=0.6)
    left.set(title=f"{N_LAYERS} equal layers in k segments", xlabel="segments k", ylim=(0, 20),
             ylabel="layers' results held", xticks=list(peaks))
    left.legend(loc="lower right")

    kib, green, pale = np.array(sizes) / 2**10, "#41ab5d", "#c7e9c0"
    faces = [pale] * (len(kib) - 1) + ["#bdbdbd"]
    for start, stop, again in segments:
        right.plot([start - 0.45, stop - 0.55], [-0.07 * kib.max()] * 2, linewidth=6,
                   color=RED if again else BLUE, solid_capstyle="butt")
        held = slice(start, start + 1 if again else stop)
        faces[held] = [green] * len(faces[held])
    right.bar(range(len(kib)), kib, color=faces)
    for colour, name in ((RED, "segment that is recomputed"), (BLUE, "segment that is kept"),
                         (green, "held from forward to backward"), (pale, "computed again")):
        right.plot([], [], color=colour, linewidth=6, label=name)
    right.set(title=f"Unequal layers under {budget / 2**10:,.0f} KiB", ylabel="KiB of its input",
              xlabel="layer", ylim=(-0.12 * kib.max(), 1.55 * kib.max()))
    right.set_xticks(range(len(kib)), [*range(len(kib) - 1), "result"])
    right.legend(fontsize=10, loc="upper right", ncols=2)
    return figure


OPTIONS = {
    "batch": (512, "samples in a step"),
    "width": (128, "of the 16 equal layers"),
}

if __name__ == "__main__":
    launch(main, OPTIONS)
