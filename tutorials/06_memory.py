"""06  Where the memory goes, and how to get it back.          60 minutes, needs: 01, 05

A parameter costs 16 bytes. Activations need memory, too. Recompute runs the forward a second time.
Then a chain of L layers holds the activations of only 2 sqrt(L) layers.

    python tutorials/06_memory.py                 one process; picture: out/06_memory.png

With Adam, a model of X parameters holds

    fp32             weight 4   gradient 4                   m 4   v 4    =  16 X bytes
    fp16 + masters   weight 2   gradient 2   fp32 master 4   m 4   v 4    =  16 X bytes

Also, every function saves results for backward: a chain of L layers keeps L results. Recompute cuts
the chain into k segments. It keeps only the input of each segment. When backward reaches a segment,
recompute runs the segment forward again. So at its peak a step holds

    (k - 1) inputs  +  L/k results of one segment  +  the last result
        = k + L/k   results of layers. This is least for k = sqrt(L)

A forward costs 1 and a backward costs 2. With recompute every layer runs forward twice, so a step
costs 4 and not 3. The second run must equal the first: dropout must draw the same random numbers.

Papers: Rajbhandari et al., "ZeRO", 2020, arXiv 1910.02054, section 3; Chen et al., "Training deep
nets with sublinear memory cost", 2016, arXiv 1604.06174.
minidl's own code: minidl/memory. Exercises: `minidl exercise 06` writes work/06_memory.py with the
marked regions empty; `minidl check 06` grades it.
"""

import numpy as np

import minidl
from minidl import memory, nn, optim
from minidl.course.out import BLUE, RED, line_at
from minidl.course.tutorial import Table, launch, picture, put, say
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.precision import amp

N_LAYERS = 16


class Recompute(minidl.Function):
    """A block of layers, as one function of x and the parameters. It saves only x, the input."""

    def forward(self, x, *parameters, block, leaves, generator):
        self.block, self.leaves, self.generator = block, leaves, generator
        self.place = generator.get_state()  # the state before the block draws its random numbers
        self.save(x)
        with minidl.no_grad():  # the layers inside save nothing
            return block(minidl.Tensor(x)).array

    def backward(self, gy):
        (x,) = self.saved
        # >>> exercise 06b: run it again
        # Return the gradients of x and of self.leaves, the block's parameters, as one tuple.
        # minidl.grad([y], [tensors], [gy]) returns the gradients of these tensors. y is the block's
        # result on a Tensor of x with requires_grad=True. The block may have dropout. Then it must
        # draw the same random numbers as in the first run (generator.get_state, set_state). And
        # code that runs later must draw the same numbers as without recompute.
        now = self.generator.get_state()
        self.generator.set_state(self.place)
        x = minidl.Tensor(x, requires_grad=True)
        y = self.block(x)
        self.generator.set_state(now)
        return minidl.grad([y], [x, *self.leaves], [gy])
        # <<<


def recompute(layers, x):
    """Returns layers[-1](...layers[0](x)). Backward will run the layers again."""
    block = nn.Sequential(*layers)
    leaves = list(block.parameters())
    generator = minidl.random.default_generator()
    return Recompute.apply(x, *leaves, block=block, leaves=leaves, generator=generator)


def run(layers, x, segments):
    """Runs the chain of layers. segments: [(start, stop, True if backward recomputes this
    segment)]."""
    for start, stop, again in segments:
        x = recompute(layers[start:stop], x) if again else layers[start:stop](x)
    return x


def equal_segments(n, k):
    return [(i * n // k, (i + 1) * n // k, True) for i in range(k)]


def peak_bytes(sizes, segments):
    """Returns the largest number of bytes that a step of the chain holds at one time.

    sizes[i] is the bytes of the input of layer i. sizes[n] is the bytes of the last result. The
    caller holds the last result."""
    n = len(sizes) - 1
    held = peak = 0
    for start, stop, again in segments:
        inside = sum(sizes[start : stop + 1])  # the input and the results of this segment
        result = sizes[n] if again or stop < n else 0  # otherwise `inside` has the last result
        peak = max(peak, held + inside + result)
        held += sizes[start] if again else sum(sizes[start:stop])
    return peak


def choose_segments(sizes, budget):
    """Returns a list of segments, [(start, stop, recomputed)], whose peak_bytes() is at most
    `budget`. Of all such lists, it returns the one that runs the fewest layers twice. Returns None
    if there is no such list."""
    # >>> exercise 06a: segments for unequal layers under a budget
    # There are n = len(sizes) - 1 layers. Each segment begins where the one before ends:
    # (0, a, ...), (a, b, ...), ..., (..., n, ...). You may try all ways to cut the layers into
    # segments. minidl/memory/recompute_plan.py has a faster method.
    n = len(sizes) - 1

    def ways(start):
        """Yields all ways to cut layers start, ..., n - 1 into segments."""
        if start == n:
            yield []
        for stop in range(start + 1, n + 1):
            for again in (False, True):
                yield from ([(start, stop, again), *rest] for rest in ways(stop))

    fitting = [way for way in ways(0) if peak_bytes(sizes, way) <= budget]
    return min(fitting, key=lambda way: sum(b - a for a, b, again in way if again), default=None)
    # <<<


def chain(widths):
    """Returns layers tanh(W x). Each layer saves one array, its result."""
    minidl.manual_seed(0)
    layers = []
    for n_in, n_out in zip(widths[:-1], widths[1:], strict=True):
        layers.append(nn.Sequential(nn.Linear(n_in, n_out, bias=False), nn.Tanh()))
    return nn.Sequential(*layers)


def measure(args, widths, segments):
    """Runs a chain forward and backward.

    Returns (activations at the peak in bytes, number of forward runs of layers, gradients)."""
    layers = put(args, chain(widths))
    forwards = []
    for layer in layers:
        layer.register_forward_hook(lambda *_: forwards.append(1))

    x = put(args, minidl.Generator(2).normal(args.batch, widths[0]))
    with memory.record() as ledger:
        y = run(layers, minidl.Tensor(x, requires_grad=True), segments)
        y.backward(np.ones_like(y.array))
    gradients = [p.grad for p in layers.parameters()]
    return ledger.most("activations"), len(forwards), gradients


def a_step(args, level, segments):
    """Does two training steps on the digits.

    Returns (the memory ledger of the second step, bytes, number of parameters). bytes: {kind: the
    bytes of weights, gradients, ... after the steps}."""
    digits, _ = datasets.digits()
    images, labels = digits[:1024]
    images = minidl.Tensor(put(args, images).reshape(-1, 64))
    labels = put(args, labels)

    body = chain([64] + [128] * N_LAYERS)
    body.forward = lambda x: run(body, x, segments)
    model = put(args, nn.Sequential(body, nn.Linear(128, 10)))
    optimizer = optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, scaler = amp.initialize(model, optimizer, level, loss_scale=128.0)

    for _ in range(2):  # the first step creates the optimizer's state
        optimizer.zero_grad()
        with memory.record(model, optimizer) as ledger:
            scaler.scale(F.cross_entropy(model(images), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
    n_parameters = sum(p.numel() for p in model.parameters())
    return ledger, memory.totals(model, optimizer), n_parameters


# name: (level, bytes per parameter for each kind in memory.STATES)
PRECISIONS = {
    "fp32": ("O0", (4, 4, 0, 8)),
    "fp16 + masters": ("O2", (2, 2, 4, 8)),  # tutorial 05 explains O0 and O2
}


def sixteen_bytes(args, table):
    """Counts the bytes that a step holds, by kind. Adds rows to the table.

    Returns two ledgers. The first is the ledger of a step that keeps all results. The second is the
    ledger of a step that recomputes."""
    all_kept = [(0, N_LAYERS, False)]
    for name, (level, widths) in PRECISIONS.items():
        ledger, held, n_parameters = a_step(args, level, all_kept)
        for kind, width in zip(memory.STATES, widths, strict=True):
            table.row(f"{name}: {kind}, {width} X", held[kind], width * n_parameters, "exact")
        table.row(f"{name}: all, 16 X", sum(held.values()), 16 * n_parameters, "exact")

    again, _, _ = a_step(args, "O2", equal_segments(N_LAYERS, 4))
    table.row("recomputed: bytes at the peak (theory: if all are kept)", again.peak_bytes,
              ledger.peak_bytes, "<=")
    return ledger, again


def equal_layers(args, table):
    """Recomputes equal layers, for several k. Returns {k: how many layers' results are held at the
    peak}."""
    n = N_LAYERS
    widths = [args.width] * (n + 1)
    unit = 4 * args.batch * args.width  # bytes of one result
    peak, once, wanted = measure(args, widths, [(0, n, False)])
    table.row("all kept: layers whose results are held", peak / unit, n, "exact")

    peaks = {}
    differ = 0
    for k in (1, 2, 4, 8, 16):
        peak, twice, gradients = measure(args, widths, equal_segments(n, k))
        peaks[k] = peak / unit
        table.row(f"k = {k}: layers whose results are held", peaks[k], k + n // k, "exact")
        for found, kept in zip(gradients, wanted, strict=True):
            differ += int((found != kept).sum())
    table.row("gradients that recompute changes", differ, 0, "exact")

    # backward computes two products for each product of forward
    products = (twice + 2 * n) / (once + 2 * n)
    table.row("matrix products: recomputed / all kept", products, 4 / 3, "exact")
    return peaks


def main(t, args):
    table = Table(t)
    n = N_LAYERS
    say(t, f"1. The memory of an AdamW step on a model of {n + 1} layers and X parameters.")
    ledgers = sixteen_bytes(args, table)

    say(t, f"2. {n} equal layers in k recomputed segments.")
    peaks = equal_layers(args, table)

    widths = [64, 256, 256, 64, 16, 128, 128, 32, 96]
    sizes = [4 * args.batch * width for width in widths]
    n_unequal = len(sizes) - 1
    budget = int(0.7 * peak_bytes(sizes, [(0, n_unequal, False)]))
    say(t, f"3. {n_unequal} unequal layers, with a budget of {budget:,} bytes.")
    segments = choose_segments(sizes, budget)
    activations, _, _ = measure(args, widths, segments)
    peak = activations + sizes[0]  # the ledger counts x as an input, not as an activation
    table.row("chosen segments: bytes at the peak", peak, peak_bytes(sizes, segments), "exact")
    table.row("chosen segments: peak (theory: the budget)", peak, budget, "<=")

    picture(t, args, draw, ledgers, peaks, sizes, segments, budget)
    return table


def draw(plt, ledgers, peaks, sizes, segments, budget):
    """Draws the memory over a step (above): with all results kept, and with recompute. Below: the
    peaks for equal layers, and the segments of unequal layers."""
    figure, (above, (left, right)) = plt.subplots(2, 2, figsize=(14, 9))
    colours = {"parameters": "#08519c", "gradients": "#fd8d3c", "master weights": "#3182bd",
               "optimizer": "#9ecae1", "inputs": "#bdbdbd", "activations": "#74c476",
               "temporary": "#e0c3e8", "workspace": "#fdae6b"}
    top = 1.4 * max(ledger.peak_bytes for ledger in ledgers) / 2**20
    titles = "A step that keeps all results", "The same step with 4 recomputed segments"
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
    right.set(title=f"Unequal layers under {budget / 2**10:,.0f} KiB", ylabel="KiB of the input",
              xlabel="layer", ylim=(-0.12 * kib.max(), 1.55 * kib.max()))
    right.set_xticks(range(len(kib)), [*range(len(kib) - 1), "result"])
    right.legend(fontsize=10, loc="upper right", ncols=2)
    return figure


OPTIONS = {
    "batch": (512, "samples in a step of parts 2 and 3"),
    "width": (128, "width of the 16 equal layers"),
}

if __name__ == "__main__":
    launch(main, OPTIONS)
