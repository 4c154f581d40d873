"""20  Inference: fold, quantise, reuse.      60 minutes, needs: 02, 05

A trained model does the same operations for every input. So minidl can record them once, rewrite
the list, and replay it.

    python tutorials/20_inference.py         one process; picture: out/20_inference.png

**Fold.** Batch norm in eval mode is y = a z + c with fixed a = gamma / sqrt(var + eps) and
c = beta - a mean. After a product z = W x + b, both together are one product with W' = a W and
b' = a b + c. The activation is applied before the product's result is written. So a layer of three
operations becomes one launch.

**Reuse.** A value needs its bytes from the line that makes it to the last line that reads it. Two
values that are never alive together may share bytes. Every plan needs at least the bytes of the
values that are alive together at one line. To find the smallest plan is NP-hard, but greedy rules
usually reach this bound.

**Quantise.** Rounding to multiples of a step s makes an error that is spread evenly over -s/2 ..
s/2. Its root mean square is s / sqrt(12). The step is the largest |number| divided by 127. With one
scale for a whole matrix, the largest number of all rows sets the step. A scale for each row (output
channel) costs 4 bytes a row. It multiplies after the sum over k, so the sum stays exact in int32.

**Batch.** A server gets requests one by one. A batch of requests reads the weights only once.
Little's law: if lambda requests arrive in a second and each stays W seconds, L = lambda W requests
are in the server.

Papers: Jacob et al. 2018 (arXiv 1712.05877); Pisarchyk & Lee 2020 (arXiv 2001.03288); Little 1961.
Exercises: `minidl exercise 20` writes work/20_inference.py with the marked regions empty;
`minidl check 20` grades it.
"""

import timeit
from functools import partial

import numpy as np

import minidl
from minidl import infer, nn, optim
from minidl.course.out import BLUE, GREEN, GREY, ORANGE, RED, line_at
from minidl.course.tutorial import Table, WrongOption, launch, picture, progress, say
from minidl.data import datasets
from minidl.infer import load
from minidl.nn import functional as F
from minidl.plain.memory_plan import bound


def per_channel(w):
    """Quantises w, (n, k) float32. Returns (whole numbers (n, k) int8, scales (n,) float32).

    The whole numbers go from -127 to 127. w is about number * scale of its row."""
    # >>> exercise 20a: a scale for each output channel
    # Row i of w becomes round(w[i] / scale[i]), ties to even (np.rint). Its scale is the largest
    # |w[i]| divided by 127, in float32. A row of zeros has scale 0. Do not divide by it.
    scale = np.abs(w).max(axis=1) / np.float32(127)
    q = np.rint(w / np.where(scale > 0, scale, 1)[:, None])
    return np.clip(q, -127, 127).astype(np.int8), scale
    # <<<


def best_fit(lifetimes):
    """Returns the offset of each value in the arena, a list.

    lifetimes[i]: (bytes, line that makes the value, last line that reads it). The value is alive at
    both lines."""
    offsets = [0] * len(lifetimes)
    # >>> exercise 20b: a planner by best fit
    # Place the largest value first. If two have equal bytes, the earlier in the list comes first. A
    # value that is placed already is in the way if both are alive at some line. There are gaps
    # between the values in the way, and below the lowest of them. Place the new value at the start
    # of the smallest gap that holds it. If two gaps are equal, take the lower. If no gap holds it,
    # place it at the highest end of the values in the way.
    placed = []
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i][0]):
        size, first, last = lifetimes[i]
        end, gaps = 0, []
        for at, j in sorted((offsets[j], j) for j in placed):
            other, begins, ends = lifetimes[j]
            if begins <= last and first <= ends:
                if at - end >= size:
                    gaps.append((at - end, end))
                end = max(end, at + other)
        offsets[i] = min(gaps)[1] if gaps else end
        placed.append(i)
    # <<<
    return offsets


def train(t, model, images, labels, n_epochs):
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    draw = np.random.default_rng(1)
    n_batches = len(images) // 50
    for _ in progress(t, range(n_epochs), "epochs"):
        order = draw.permutation(len(images))
        for rows in np.array_split(order, n_batches):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()


def lifetimes(graph):
    """Returns [(bytes, line that makes it, last line that reads it)] of each value of a graph."""
    last = {v: len(graph.nodes) for v in graph.outputs}
    for i, node in enumerate(graph.nodes):
        for v in node.values:
            last[v] = max(i, last.get(v, i))

    spans = []
    for i, node in enumerate(graph.nodes):
        for v in node.outputs:
            spans.append((v.n_bytes, i, last.get(v, i)))
    return spans


def seconds(run):
    return float(np.median(timeit.repeat(run, number=1, repeat=21)))


def fold(t, model, x, table):
    """Show the model as it is traced and after all passes: its lines, launches, time and error."""
    graph = infer.trace(model, x)
    say(t, f"The model as {len(graph.nodes)} lines:", graph)
    n_before = len(infer.compile(graph).launches)
    table.row("launches before: lines, without the view", n_before, len(graph.nodes) - 1, "exact")

    want = graph.run(x)
    say(t, f"after the passes {infer.optimise(graph)}:", graph)
    plan = infer.compile(graph)
    # 2 convolutions, the first with its pooling, and 2 products. 2 launches move the channels to
    # the last dimension and back
    table.row("launches after", len(plan.launches), 4 + 2, "exact")
    error = np.abs(plan(x).array - want).max() / np.abs(want).max()
    table.row("folded and fused: largest error", float(error), 1e-5, "<=")

    for name, run in ("eager", model), ("plan", plan):
        table.row(f"us for {len(x)} images, {name}", 1e6 * seconds(partial(run, x)))


def reuse(model, x, table):
    """Returns (lifetimes, offsets) of the network's values for the images x."""
    spans = lifetimes(infer.trace(model, x))
    offsets = best_fit(spans)

    convolution_1 = 3 * 32 * 64  # with its norm and its ReLU: 32 channels of 8 x 8
    pooled = 32 * 16
    convolution_2 = 3 * 64 * 16  # 64 channels of 4 x 4
    layers = 1024 + 2 * 128 + 10  # the flat values, a layer and its ReLU, the scores
    elements = convolution_1 + pooled + convolution_2 + layers  # of one image
    n_bytes = sum(n for n, _, _ in spans)
    table.row("bytes of all values", n_bytes, 4 * len(x) * elements, "exact")

    arena = max(at + n for (n, _, _), at in zip(spans, offsets, strict=True))
    table.row("bytes of the arena: best fit reaches the bound", arena,
              bound(dict(enumerate(spans))), "exact")
    return spans, offsets


def right(run, images, labels):
    """Returns the share of images whose digit the model finds."""
    return float((run(minidl.tensor(images)).array.argmax(1) == labels).mean())


def quantise(model, known, images, labels, table):
    """Compare one scale for a matrix with one for each row.

    Returns the errors of both, in units of the row's own scale."""
    # rows of different magnitude, as after folding batch norm
    w = model[8].weight.array * np.geomspace(0.02, 1, 128, dtype=np.float32)[:, None]
    q, scale = per_channel(w)
    n_bytes = q.nbytes + scale.nbytes
    table.row("bytes of the weights: n k + 4 n", n_bytes, w.size + 4 * len(w), "exact")

    one = np.full_like(scale, scale.max())
    error_one = np.rint(w / one[:, None]) * one[:, None] - w
    error_rows = q * scale[:, None] - w
    for name, error, s in (("one scale", error_one, one), ("a scale a row", error_rows, scale)):
        rms = float(np.sqrt((error**2).mean()))
        theory = float(np.sqrt((s**2).mean() / 12))
        table.row(f"rms error, {name}: s / sqrt(12)", rms, theory, "rel<0.03")
        ratio = ((w**2).mean(1) / (error**2).mean(1)).mean()
        table.row(f"signal to noise in dB, {name}", float(10 * np.log10(ratio)))

    graph = infer.quantize(infer.trace(model, images), calibrate=[known], method="mse")
    infer.optimise(graph)
    lost = right(model, images, labels) - right(infer.compile(graph), images, labels)
    table.row("share of digits right in float32 and wrong in int8", lost, 0.01, "<=")
    return error_one / scale[:, None], error_rows / scale[:, None]


def batch(images, table):
    """Simulate a server that batches requests, with measured times of plans and a modelled clock.

    Returns (request rates, {largest batch: mean latencies}, highest rate of batches of one).
    minidl.infer.Batcher is a real server."""
    model = nn.MLP(64, 1024, 1024, 10).eval()  # 4 MB of weights
    costs = {}
    for n in (1, 8, 32):
        graph = infer.trace(model, images[:n])
        infer.optimise(graph)
        costs[n] = seconds(partial(infer.compile(graph), images[:n]))

    def cost(n):
        """Returns the seconds of the smallest plan that takes n images."""
        return costs[min(size for size in costs if size >= n)]

    rates = np.geomspace(0.03, 4, 14) / costs[1]
    curves = {1: [], 32: []}
    for largest, waits in curves.items():
        for rate in rates:
            arrivals = load.poisson(rate, 3000)
            _, ends = load.simulate(arrivals, cost, largest, max_delay=2 * costs[1])
            waits.append(float((ends - arrivals).mean()))
        through = len(arrivals) / (ends[-1] - arrivals[0])
        table.modelled(f"batches of up to {largest}, at 4 times the rate of one: L = lambda W",
                       load.inside(arrivals, ends), through * waits[-1], "rel<1e-9")
    return rates, curves, 1 / costs[1]


def main(t, args):
    if args.device != "cpu":
        raise WrongOption("wanted --device cpu, because plans run on the CPU only; got --device "
                          "cuda. On a GPU use minidl.graphed, which replays a CUDA graph")
    digits, _ = datasets.digits()
    images, labels = digits[:1400]
    images = np.asarray(images, np.float32).reshape(-1, 1, 8, 8)
    minidl.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10))

    train(t, model, images[:1000], labels[:1000], args.epochs)
    model.eval()
    table = Table(t)
    fold(t, model, images[:8], table)
    spans, offsets = reuse(model, images[:32], table)
    errors = quantise(model, images[:400], images[1000:], labels[1000:], table)
    loads = batch(images.reshape(-1, 64), table)
    picture(t, args, draw, spans, offsets, errors, loads)
    return table


def draw(plt, spans, offsets, errors, loads):
    """Draw, from left: values in the arena, quantisation errors, latency over request rate."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 5.2))
    for k, ((n, first, last), at) in enumerate(zip(spans, offsets, strict=True)):
        left.bar(first, n / 1e3, last - first + 1, at / 1e3, align="edge", edgecolor="white",
                 color=(BLUE, ORANGE, GREEN, GREY)[k % 4])
    line_at(left, "bound", y=bound(dict(enumerate(spans))) / 1e3)
    left.set(title="Lines and bytes of each value", xlabel="line", ylabel="kB of the arena")

    bins = np.linspace(-4, 4, 161)
    for e, name, colour in zip(errors, ("one scale for the matrix", "one for each row"),
                               (RED, BLUE), strict=True):
        middle.hist(e.reshape(-1), bins, density=True, histtype="step",
                    color=colour, label=name, linewidth=2)
    middle.set(title="Error of a weight, in units of its row's scale", xlabel="error / scale",
               ylabel="density", ylim=(0, 1.3))
    middle.legend(loc="upper right")

    rates, curves, alone = loads
    for (largest, waits), colour in zip(curves.items(), (RED, BLUE), strict=True):
        right.loglog(rates, 1e3 * np.array(waits), "o-", color=colour,
                     label=f"batches of at most {largest}")
    line_at(right, "one by one", x=alone, at=0.02, color=GREY)
    right.set(title="Requests in batches", xlabel="requests a second",
              ylabel="latency in ms, modelled")
    right.legend(loc="best")
    return figure


OPTIONS = {"epochs": (4, "epochs of training on the digits")}

if __name__ == "__main__":
    launch(main, OPTIONS)
