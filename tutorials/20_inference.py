"""20  Inference: fold, quantise, reuse.      60 minutes, needs: 02, 05

A trained model does the same operations for every input. So minidl can record these operations once
as a list of lines. It can rewrite the list, and run it for every input.

    python tutorials/20_inference.py         one process; picture: out/20_inference.png

**Fold.** Batch norm in eval mode is y = a z + c with fixed a = gamma / sqrt(var + eps) and
c = beta - a mean. If z is a product W x + b, then y is a product, too: y = W' x + b', with W' = a W
and b' = a b + c. And the activation is applied to the result of the product before the result is
written to memory. So product, batch norm and activation become one launch.

**Reuse.** A value is alive from the line that makes it to the last line that reads it. During this
time it needs its bytes. The arena is the memory for all values. Two values that are never alive at
the same line may use the same bytes of the arena. A plan gives each value its place in the arena.
At each line, add up the bytes of the values that are alive. No plan can be smaller than the largest
of these sums. To find the smallest plan is NP-hard, but greedy rules usually reach this bound.

**Quantise.** A weight w is stored as a whole number q from -127 to 127, so that w is about q s. The
errors of rounding to multiples of s are spread evenly from -s/2 to s/2. Their root mean square is
s / sqrt(12). The scale s is the largest |w| divided by 127. With one scale for a whole matrix, the
largest weight of all rows sets s. A scale for each row, an output channel, costs 4 bytes a row. In
a product, the whole numbers are first summed exactly in int32. Then the sum is multiplied by the
scale.

**Batch.** A server gets requests one by one. If it runs several requests as a batch, it reads the
weights only once for all of these. Little's law: if lambda requests arrive in a second and each
stays W seconds, the server holds L = lambda W requests on average.

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

    The whole numbers are from -127 to 127. A weight is about its whole number times the scale of
    its row."""
    # >>> exercise 20a: a scale for each output channel
    # scale[i] is the largest |number| of w[i] divided by 127, in float32. Row i of the result is
    # w[i] / scale[i], rounded by np.rint. If a row has only zeros, its scale is 0: do not divide by
    # it. The result's row is then zeros.
    scale = np.abs(w).max(axis=1) / np.float32(127)
    q = np.rint(w / np.where(scale > 0, scale, 1)[:, None])
    return np.clip(q, -127, 127).astype(np.int8), scale
    # <<<


def best_fit(lifetimes):
    """Returns a list: for each value, its offset in the arena in bytes.

    lifetimes[i]: (bytes of value i, line that makes it, last line that reads it). The value is
    alive from the first of these lines to the last, with both included."""
    offsets = [0] * len(lifetimes)
    # >>> exercise 20b: a planner by best fit
    # Place the values one by one, those with the most bytes first. Of values with equal bytes, the
    # one that is earlier in the list comes first. For a new value, look at the values that already
    # have a place and are alive at one of its lines: these values are in its way. There may be gaps
    # between the values in the way, and below the lowest of them. Place the new value at the start
    # of the smallest gap that holds it. If two gaps are equally large, take the lower one. If no
    # gap holds it, place it at the highest end of the values in the way. If no value is in the way,
    # its offset is 0.
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
    """Returns a list with an entry for each value of a graph: (its bytes, the line that makes it,
    the last line that reads it)."""
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
    """Shows the lines of the model's graph, the number of launches and the time, before and after
    all passes. Also compares the model's results before and after the passes."""
    graph = infer.trace(model, x)
    say(t, f"The model as {len(graph.nodes)} lines:", graph)
    n_before = len(infer.compile(graph).launches)
    table.row("launches before: lines, without the view", n_before, len(graph.nodes) - 1, "exact")

    want = graph.run(x)
    say(t, f"after the passes {infer.optimise(graph)}:", graph)
    plan = infer.compile(graph)
    # 4 launches are 2 convolutions and 2 products. The launch of the first convolution also does
    # the pooling. 2 more launches move the channels to the last dimension and back.
    table.row("launches after", len(plan.launches), 4 + 2, "exact")
    error = np.abs(plan(x).array - want).max() / np.abs(want).max()
    table.row("folded and fused: largest error", float(error), 1e-5, "<=")

    for name, run in ("eager", model), ("plan", plan):
        table.row(f"us for {len(x)} images, {name}", 1e6 * seconds(partial(run, x)))


def reuse(model, x, table):
    """Returns (lifetimes, offsets) of the network's values for the images x."""
    spans = lifetimes(infer.trace(model, x))
    offsets = best_fit(spans)

    # The numbers of elements of the network's values, for one image.
    convolution_1 = 3 * 32 * 64  # convolution, norm and ReLU; each has 32 channels of 8 x 8
    pooled = 32 * 16
    convolution_2 = 3 * 64 * 16  # convolution, norm and ReLU; each has 64 channels of 4 x 4
    layers = 1024 + 2 * 128 + 10  # the flattened channels; a linear layer and its ReLU; the scores
    elements = convolution_1 + pooled + convolution_2 + layers
    n_bytes = sum(n for n, _, _ in spans)
    table.row("bytes of all values", n_bytes, 4 * len(x) * elements, "exact")

    arena = max(at + n for (n, _, _), at in zip(spans, offsets, strict=True))
    table.row("bytes of the arena: best fit reaches the bound", arena,
              bound(dict(enumerate(spans))), "exact")
    return spans, offsets


def right(run, images, labels):
    """Returns the share of the images that the model classifies correctly. run: the model."""
    return float((run(minidl.tensor(images)).array.argmax(1) == labels).mean())


def quantise(model, known, images, labels, table):
    """Compares two ways to quantise a matrix: one scale for all rows, and one scale for each row.

    Returns two arrays: the errors of the weights in each way, divided by the scale of the row.
    known: images for the calibration of the activations. images, labels: for the accuracy."""
    # Gives the rows different magnitudes, as folding a batch norm does.
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
    """Simulates a server that batches requests. The times of batches are measured
    before the simulation.

    Returns (request rates, {largest batch: [mean latency at each rate]}, the highest rate at which
    the server can run the requests one by one). Rates are in requests a second, latencies in
    seconds. minidl.infer.Batcher is a real server."""
    model = nn.MLP(64, 1024, 1024, 10).eval()  # 4 MB of weights
    costs = {}
    for n in (1, 8, 32):
        graph = infer.trace(model, images[:n])
        infer.optimise(graph)
        costs[n] = seconds(partial(infer.compile(graph), images[:n]))

    def cost(n):
        """Returns the seconds of the smallest measured batch that has room for n images."""
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
    """Draws three plots: the values in the arena, the errors of quantisation, and the latency over
    the request rate."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 5.2))
    for k, ((n, first, last), at) in enumerate(zip(spans, offsets, strict=True)):
        left.bar(first, n / 1e3, last - first + 1, at / 1e3, align="edge", edgecolor="white",
                 color=(BLUE, ORANGE, GREEN, GREY)[k % 4])
    line_at(left, "bound", y=bound(dict(enumerate(spans))) / 1e3)
    left.set(title="Place of each value, from its first to its last line", xlabel="line",
             ylabel="kB of the arena")

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


OPTIONS = {"epochs": (4, "number of epochs of training on the digits")}

if __name__ == "__main__":
    launch(main, OPTIONS)
