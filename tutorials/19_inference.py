"""19  Inference: fold, quantise, reuse.      60 minutes, needs: 02, 04

A trained model does the same for every input. Written down once, it can be rewritten and replayed.

    python tutorials/19_inference.py         one process; picture: out/19_inference.png

**Fold.** Batch norm in eval mode is y = a z + c with fixed a = gamma / sqrt(var + eps), c = beta -
a mean. After a product z = W x + b it is another product: W' = a W, b' = a b + c. An activation is
done before the product's result is written. So a layer of three operations becomes one launch.

**Reuse.** A value needs its bytes from the line that makes it to the last that reads it. Two values
that are never alive together may share bytes. No plan needs less than the bytes of the values that
are alive together at one line; to reach that bound is NP-hard, greedy rules mostly do.

**Quantise.** Rounding to multiples of a step s makes an error that is spread evenly over -s/2 ..
s/2: its root mean square is s / sqrt(12). The step is the largest number over 127. A single scale
for a whole matrix takes it from the largest of all rows; a scale for each row (output channel)
costs 4 bytes a row, and leaves the scales outside of the sum over k, which stays exact in int32.

**Batch.** A server gets requests one by one. Little's law: on average L = lambda W requests are
inside, if lambda come in a second and each stays W seconds.

Papers: Jacob et al. 2018 (arXiv 1712.05877); Pisarchyk & Lee 2020 (arXiv 2001.03288); Little 1961.
Exercises: `minidl exercise 19` writes work/19_inference.py with the marked regions empty;
`minidl check 19` grades it.
"""

import time

import numpy as np

import minidl
from minidl import infer, nn, optim
from minidl.course.out import BLUE, GREEN, GREY, ORANGE, RED, line_at
from minidl.data import datasets
from minidl.infer import load, memory
from minidl.infer.quantize import weights_of
from minidl.nn import functional as F
from minidl.tutorial import Table, WrongOption, launch, picture, progress, say

SIZES = 1, 8, 32  # of the plans that the batcher has


def per_channel(w):
    """w (n, k) float32 as (whole numbers (n, k) int8, from -127 to 127; scales (n,) float32)."""
    # >>> exercise 19a: a scale for each output channel
    # Row i of w becomes round(w[i] / scale[i]), ties to even (np.rint). Its scale is the largest
    # |w[i]| over 127, in float32. A row of zeros has scale 0, and must not divide by it.
    scale = np.abs(w).max(axis=1) / np.float32(127)
    q = np.rint(w / np.where(scale > 0, scale, 1)[:, None])
    return np.clip(q, -127, 127).astype(np.int8), scale
    # <<<


def best_fit(lifetimes):
    """Where each value lies: a list of offsets. lifetimes[i]: (bytes, line that makes it, last line
    that reads it), both included."""
    offsets = [0] * len(lifetimes)
    # >>> exercise 19b: a planner by best fit
    # Place the largest value first; of equal ones, the earlier in the list. Those placed before
    # that are alive with it at some line are in the way: between them, and below the lowest, are
    # gaps. It goes to the start of the smallest gap that holds it; of equal gaps, the lowest; if
    # there is none, to the end of the highest that is in the way.
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


def network(generator):
    """Images (n, 1, 8, 8) -> scores (n, 10)."""
    g = {"generator": generator}
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False, **g), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1, bias=False, **g), nn.BatchNorm2d(64),
        nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128, **g), nn.ReLU(), nn.Linear(128, 10, **g))


def train(t, model, images, labels, n_epochs):
    optimizer, order = optim.AdamW(model.parameters(), lr=3e-3), minidl.Generator(1)
    for _ in progress(t, range(n_epochs), "epochs"):
        shuffled = np.argsort(order.uniform(len(images)))
        for rows in np.array_split(shuffled, len(images) // 50):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()
    return model.eval()


def lifetimes(graph):
    """Of each value that a line makes: (bytes, its line, the last line that reads it)."""
    last = {v: len(graph.nodes) for v in graph.outputs}
    for i, node in enumerate(graph.nodes):
        last.update({v: max(i, last.get(v, i)) for v in node.values})
    return [(v.n_bytes, i, last.get(v, i)) for i, node in enumerate(graph.nodes)
            for v in node.outputs]


def most_alive(spans):
    """The bound: the most bytes alive at one line."""
    return max(sum(n for n, first, last in spans if first <= line <= last)
               for line in range(max(last for _, _, last in spans) + 1))


def fold(t, model, x, table):
    """The traced graph, the optimised one's plan."""
    graph = infer.trace(model, x)
    say(t, f"1. Fold. The model as {len(graph.nodes)} lines:", graph)
    plain = infer.compile(graph)
    table.row("launches before: lines less the view", len(plain.launches), len(graph.nodes) - 1,
              "exact")
    want = graph.run(x)
    counts = infer.optimise(graph)
    say(t, f"after the passes {counts}:", graph)
    table.row("batch norms folded", counts["batch_norm"], 2, "exact")
    table.row("activations in a product", counts["epilogue"], 3, "exact")
    plan = infer.compile(graph)
    # 2 convolutions, 2 products, the pooling; the channels to the end and back
    table.row("launches after", len(plan.launches), 5 + 2, "exact")
    error = np.abs(plan(x).data - want).max() / np.abs(want).max()
    table.row("folded and fused: largest error", float(error), 1e-5, "<=")
    for name, run in ("eager", model), ("plan", plan):
        table.row(f"us for {len(x)} images, {name}", 1e6 * seconds(lambda run=run: run(x)))
    return plan


def seconds(run):
    """The median of 21 calls."""
    run()
    times = [time.perf_counter()]
    for _ in range(21):
        run()
        times.append(time.perf_counter())
    return float(np.median(np.diff(times)))


def reuse(t, model, x, table):
    """(lifetimes, offsets) of the network's values for 32 images."""
    spans = lifetimes(infer.trace(model, x))
    offsets, bound = best_fit(spans), most_alive(spans)
    say(t, f"2. Reuse. {len(spans)} values")
    table.row("bytes of all values", sum(n for n, _, _ in spans), 4 * len(x) * (
        3 * 32 * 64 + 32 * 16 + 3 * 64 * 16 + 1024 + 2 * 128 + 10), "exact")
    table.row("bytes of the arena, best fit", arena(spans, offsets), bound, "exact")
    rng, ours, greedy = np.random.default_rng(0), [], []
    for _ in range(50):
        first = rng.integers(0, 40, 60)
        some = [(int(n), int(a), int(a + d)) for n, a, d in zip(
            64 * rng.integers(1, 500, 60), first, rng.geometric(0.3, 60), strict=True)]
        ours.append(arena(some, best_fit(some)) / most_alive(some))
        greedy.append(memory.plan([memory.Lifetime(*v) for v in some]))
    table.row("50 random plans: mean arena / bound", float(np.mean(ours)), 1.1, "<=")
    table.row("... of the library, which tries more orders",
              float(np.mean([m.arena / m.bound for m in greedy])), 1.1, "<=")
    return spans, offsets


def arena(spans, offsets):
    return max(at + n for (n, _, _), at in zip(spans, offsets, strict=True))


def quantise(t, model, x, images, labels, table):
    """(the errors of one step, of one scale for a matrix, of one for each row), in steps."""
    say(t, "3. Quantise")
    noise = minidl.Generator(2).uniform(100_000, low=-1, high=1).astype(np.float64)
    step = 1 / 127
    even = np.rint(noise / step) * step - noise
    table.row("rms of the rounding of even numbers", float(np.sqrt((even ** 2).mean())),
              step / np.sqrt(12), "rel<0.01")
    # channels of unlike size, as after folding batch norm
    w = model[8].weight.data * np.geomspace(0.02, 1, 128, dtype=np.float32)[:, None]
    q, scale = per_channel(w)
    theirs, their_scale = weights_of(w)
    table.row("per channel: numbers unlike the library's", int(
        (q != theirs).sum() + (scale != their_scale[:, 0]).sum()), 0, "exact")
    table.row("bytes of the weights: n k + 4 n", q.nbytes + scale.nbytes, w.size + 4 * len(w),
              "exact")
    one = np.abs(w).max() / 127
    errors = {"one scale": np.rint(w / one) * one - w, "a scale a row": q * scale[:, None] - w}
    for name, e in errors.items():
        table.row(f"signal to noise in dB, {name}",
                  float(10 * np.log10(((w ** 2).mean(1) / (e ** 2).mean(1)).mean())))
    table.row("rms error, a scale a row / one scale",
              float(np.linalg.norm(errors["a scale a row"]) / np.linalg.norm(errors["one scale"])),
              1.0, "<=")
    graph = infer.quantize(infer.trace(model, x), calibrate=[x], method="mse")
    infer.optimise(graph)
    plan, right = infer.compile(graph), {}
    for name, run in ("float32", model), ("int8", plan):
        given = [images[i:i + len(x)] for i in range(0, len(images) - len(x) + 1, len(x))]
        got = np.concatenate([run(minidl.tensor(part)).data.argmax(1) for part in given])
        right[name] = float((got == labels[:len(got)]).mean())
    table.row("digits: right, float32", right["float32"])
    table.row("digits: lost by int8, at most a point", right["float32"] - right["int8"], 0.01, "<=")
    return [e / (scale[:, None]) for e in errors.values()]


def batch(t, images, n_requests, table):
    """(rates, {name: modelled latencies}, measured (rate, latency), 1 / the time of one)."""
    # 4 MB of weights, which a batch of 32 reads once, and 32 batches of one 32 times
    model, images = nn.MLP(64, 1024, 1024, 10).eval(), images.reshape(-1, 64)
    plans = [infer.compile(optimised(model, images[:n])) for n in SIZES]
    costs = {n: seconds(lambda p=p, n=n: p(images[:n])) for n, p in zip(SIZES, plans, strict=True)}
    say(t, "4. Batch. A batch takes " + ", ".join(f"{1e6 * s:.0f} us of {n}"
                                                  for n, s in costs.items()))
    alone, delay = 1 / costs[1], 2 * costs[1]

    def cost(n):
        return costs[min(size for size in SIZES if size >= n)]

    curves, rates = {}, alone * np.geomspace(0.03, 4, 14)
    for largest in 1, 32:
        waits = []
        for rate in rates:
            arrivals = load.poisson(rate, 3000)
            _, ends = load.simulate(arrivals, cost, largest, delay)
            waits.append(float((ends - arrivals).mean()))
        curves[f"at most {largest}"] = waits
        through = len(arrivals) / (ends[-1] - arrivals[0])
        table.modelled(f"at most {largest}: L at {rates[-1] / alone:.0f} times the rate of one",
                       load.inside(arrivals, ends), through * waits[-1], "rel<1e-9")
    with infer.Batcher(plans, max_delay=delay) as batcher:
        requests = [images[i % len(images)] for i in range(n_requests)]
        latencies = load.offer(batcher, requests, load.poisson(alone / 20, n_requests))
    report = batcher.report()
    table.row("a real batcher: L", report.inside, report.rate * report.latency, "rel<1e-6")
    table.row("... requests in a batch", report.batch)
    table.row("... requests without an answer", int(np.isnan(latencies).sum()), 0, "exact")
    return rates, curves, (alone / 20, float(latencies.mean())), alone


def optimised(model, x):
    graph = infer.trace(model, x)
    infer.optimise(graph)
    return graph


def main(t, args):
    if args.device != "cpu":
        raise WrongOption("--device cuda: a plan is the CPU's; on a GPU, minidl.graphed replays a "
                          "model as a CUDA graph")
    images, labels = datasets.digits()[0][:]
    images = np.asarray(images, np.float32).reshape(-1, 1, 8, 8)
    images, labels = images[:1400], labels[:1400]
    table, model = Table(t), network(minidl.Generator(0))
    train(t, model, images[:1000], labels[:1000], args.epochs)
    fold(t, model, images[:8], table)
    spans, offsets = reuse(t, model, images[:32], table)
    errors = quantise(t, model, images[1000:1032], images[1000:], labels[1000:], table)
    loads = batch(t, images, args.requests, table)
    picture(t, draw, spans, offsets, errors, loads)
    return table


def draw(plt, spans, offsets, errors, loads):
    """Left: values in the arena. Middle: quantisation errors. Right: latency and rate."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(16, 5.2))
    for k, ((n, first, last), at) in enumerate(zip(spans, offsets, strict=True)):
        left.bar(first, n / 1e3, last - first + 1, at / 1e3, align="edge", edgecolor="white",
                 color=(BLUE, ORANGE, GREEN, GREY)[k % 4])
    line_at(left, "bound", y=most_alive(spans) / 1e3)
    left.set(title="Each value: its lines and its bytes", xlabel="line", ylabel="kB of the arena")

    bins = np.linspace(-4, 4, 161)
    for e, name, colour in zip(errors, ("one scale for the matrix", "one for each row"),
                               (RED, BLUE), strict=True):
        middle.hist(e.reshape(-1), bins, density=True, histtype="step",
                    color=colour, label=name, linewidth=2)
    middle.set(title="Error of a weight, in steps of its row's scale", xlabel="steps",
               ylabel="density", ylim=(0, 1.3))
    middle.legend(loc="upper right")

    rates, curves, (rate, latency), alone = loads
    for (name, waits), colour in zip(curves.items(), (RED, BLUE), strict=True):
        right.loglog(rates, 1e3 * np.array(waits), "o-", color=colour, label=f"modelled, {name}")
    right.plot(rate, 1e3 * latency, "*", color=GREEN, markersize=14, label="measured, at most 32")
    line_at(right, "one by one", x=alone, at=0.02, color=GREY)
    right.set(title="Requests in batches", xlabel="requests a second", ylabel="latency in ms")
    right.legend(loc="best")  # the star is where the machine was
    return figure


OPTIONS = {"epochs": (4, "over the digits"), "requests": (200, "to the real batcher")}

if __name__ == "__main__":
    launch(main, OPTIONS)
