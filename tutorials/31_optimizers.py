"""31  Optimizers: from a gradient to a step, and where to begin.   60 minutes, needs: 01

    python tutorials/31_optimizers.py                   picture: out/31_optimizers.png

A gradient g says in which direction the loss grows. An optimizer computes a step from the gradient.

1. Four optimizers. Each optimizer treats every weight w by itself. lr is the learning rate, t the
number of the step:

    SGD         w <- w - lr g
    momentum    v <- b v + g                         w <- w - lr v
    Adam        m <- b1 m + (1 - b1) g               a running mean of g
                v <- b2 v + (1 - b2) g^2             a running mean of g^2
                m' = m / (1 - b1^t),  v' = v / (1 - b2^t)            t = 1, 2, ...
                w <- w - lr m' / (sqrt(v') + eps)
    AdamW       w <- (1 - lr decay) w, and then Adam's step          (exercise 31a)

On a quadratic loss, k (w - w*)^2 / 2, each step of SGD multiplies the distance w - w* by 1 - lr k.
For convergence lr must be below 2 / k. In a loss with several directions, the largest k sets this
limit. The direction with the smallest k is then slow.

2. Bias correction. m and v begin at 0. After step 1, m = (1 - b1) g and v = (1 - b2) g^2. Both are
too small. m is a sum of all gradients so far, each multiplied by a factor. The sum of these factors
is 1 - b1^t in m, and 1 - b2^t in v. Dividing by these sums makes true means. So at step 1 m' = g
and v' = g^2, and the step is lr g / |g|: it is lr or -lr, however large g is. Without the
correction its length is lr (1 - b1) / sqrt(1 - b2), which is 3.16 lr for the usual b1 and b2.

3. AdamW is not Adam with L2. L2 adds decay * w to the gradient. Adam divides the gradient by
sqrt(v'), and so it also divides the decay. Let a weight have gradients +G, -G, +G, ... whose mean
is 0. Then sqrt(v') is G, and after T steps

    AdamW          w = w0 (1 - lr decay)^T           the same for every weight
    Adam with L2   w = w0 (1 - lr decay / G)^T       nearly no decay where gradients are large

4. Clipping by the global norm multiplies all gradients by one number, min(1, max_norm / norm). So
the direction of the step does not change. The norm is one number for all arrays of gradients. If
each rank holds a part of the gradients, it computes the sum of the squares of its part. The
all-reduce of this one number gives norm^2.

5. A schedule changes lr during the training: lr rises in a straight line (warm-up), then falls
along half a cosine.

6. Initialisation. Let z = W h with n inputs and weights of mean 0 and variance s. For each output
the mean of z^2 is n s times the mean of h^2. After ReLU half of this is left. So one layer
multiplies the mean square of the activations by n s / 2, and L layers by (n s / 2)^L:

    He        s = 2 / n       factor 1         (exercise 31b: also for leaky ReLU and convolutions)
    Xavier    s = 1 / n       factor 1/2       made for layers without ReLU, n inputs and outputs

The measured value is a mean over R random networks, so it has an error. Take the mean square after
a layer, divided by the mean square before this layer. For normal weights this ratio has a relative
variance of exactly 5 / n. The reason: for a standard normal z the mean of relu(z)^4 is 3/2, the
mean of relu(z)^2 is 1/2, and (3/2 - 1/4) / (1/4) = 5. The ratios of different layers are
independent. So the mean over R networks has the relative variance ((1 + 5/n)^L - 1) / R. The rows
of the table allow four standard deviations.

The plain page: minidl/plain/optimizers.py. Papers: Sutskever et al. 2013 (momentum); Kingma & Ba
2014, arXiv 1412.6980 (Adam); Loshchilov & Hutter 2017, arXiv 1711.05101 (AdamW); Pascanu et al.
2012, arXiv 1211.5063 (clipping); Loshchilov & Hutter 2016, arXiv 1608.03983 (cosine); Glorot &
Bengio 2010 (Xavier); He et al. 2015, arXiv 1502.01852 (He).
Exercises: `minidl exercise 31` writes work/31_optimizers.py, `minidl check 31` grades it.
"""

import math
from functools import partial

import numpy as np

import minidl
from minidl import nn, optim
from minidl.comm import ring
from minidl.course.out import BLUE, GREEN, GREY, ORANGE, RED
from minidl.course.tutorial import Table, host, launch, picture, put, say
from minidl.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from minidl.plain import optimizers as plain

N_LAYERS = 10


def sgd_step(w, g, lr):
    """Makes one step of SGD on w, in place. w, g: arrays of one shape."""
    w -= lr * g


def momentum_step(w, g, v, lr, momentum=0.9):
    """Makes one step with momentum on w, in place. v: the velocity, zeros at first; it is changed
    in place."""
    v[...] = momentum * v + g
    w -= lr * v


def adamw_step(w, g, m, v, t, lr, decay=0.0, b1=0.9, b2=0.999, eps=1e-8):
    """Makes step number t = 1, 2, ... of AdamW on w, in place. m and v are zeros at first, and are
    changed in place. With decay=0 this is Adam's step."""
    # >>> exercise 31a: AdamW's step
    # Multiply w by 1 - lr * decay. Then update m, the running mean of g, and v, the running mean of
    # g^2. Compute m' and v' from these. Then subtract lr * m' / (sqrt(v') + eps) from w.
    # Change w, m and v in place (w *= ..., m[...] = ..., w -= ...), because the caller keeps these
    # arrays. Do not change g.
    w *= 1 - lr * decay
    m[...] = b1 * m + (1 - b1) * g
    v[...] = b2 * v + (1 - b2) * g**2
    mean = m / (1 - b1**t)  # m'
    mean_square = v / (1 - b2**t)  # v'
    w -= lr * mean / (np.sqrt(mean_square) + eps)
    # <<<


def he_variance(shape, slope=0.0):
    """Returns the variance of the weights with which a layer keeps the mean square of its inputs.
    shape: the shape of the weights, (outputs, inputs), or (outputs, inputs, kh, kw) for a
    convolution. slope: the slope of the leaky ReLU below 0. With 0 it is ReLU. With 1 it changes
    nothing."""
    # >>> exercise 31b: He's variance
    # One output is a sum of fan_in products. What is fan_in for each of the two kinds of shapes? A
    # leaky ReLU makes the mean of z^2 smaller. Which part of this mean is left, if z is as often
    # positive as negative? The variance times fan_in times this part must be 1.
    fan_in = math.prod(shape[1:])
    kept = (1 + slope**2) / 2
    return 1 / (fan_in * kept)
    # <<<


def run(step, start, gradients):
    """Does one step for each gradient. Returns the weights after the last step. step(w, g, m, v, t)
    changes w."""
    w = start.copy()
    m = np.zeros_like(w)
    v = np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        step(w, g, m, v, t)
    return w


def run_real(args, make, start, gradients):
    """Does the same as run(), with an optimizer of minidl.optim. make([w]) makes this optimizer."""
    w = put(args, minidl.tensor(start.copy())).requires_grad_()
    optimizer = make([w])
    for g in gradients:
        w.grad = put(args, minidl.tensor(g.copy()))
        optimizer.step()
    return host(w.detach())


# BY_HAND has the optimizers of this file: {name: step(w, g, m, v, t)}. REAL has the same optimizers
# from minidl.optim.
LR = 0.03
DECAY = 0.1
BY_HAND = {
    "SGD": lambda w, g, m, v, t: sgd_step(w, g, LR),
    "momentum": lambda w, g, m, v, t: momentum_step(w, g, v, LR),
    "Adam": partial(adamw_step, lr=LR),
    "AdamW": partial(adamw_step, lr=LR, decay=DECAY),
}
REAL = {
    "SGD": partial(optim.SGD, lr=LR),
    "momentum": partial(optim.SGD, lr=LR, momentum=0.9),
    "Adam": partial(optim.Adam, lr=LR),
    "AdamW": partial(optim.AdamW, lr=LR, weight_decay=DECAY),
}


def four_optimizers(args, table):
    """Part 1: compares the four optimizers of this file with the optimizers of minidl.optim."""
    draw = np.random.default_rng(31)
    start = draw.normal(size=(5, 7))
    # the gradients have sizes from 1e-2 to 1e2, and some are exactly 0
    gradients = [draw.normal(size=start.shape) * 10.0 ** draw.integers(-2, 3) for _ in range(20)]
    gradients[3][:, :2] = 0
    for name, step in BY_HAND.items():
        ours = run(step, start, gradients)
        apart = float(np.abs(ours - run_real(args, REAL[name], start, gradients)).max())
        if name in ("SGD", "momentum"):  # the same operations in the same order
            table.row(f"{name}: difference from minidl.optim", apart, 0.0, "exact")
        else:  # in each of 20 float64 steps the factors have another order
            table.row(f"{name}: difference from minidl.optim", apart, 0.0, "abs<1e-13")
    page = run(partial(plain.adam_step, lr=LR), start, gradients)
    apart = float(np.abs(run(BY_HAND["Adam"], start, gradients) - page).max())
    table.row("Adam: difference from the plain page", apart, 0.0, "abs<1e-13")


# The loss of the valley is (k_x (x - 2)^2 + k_y (y - 1)^2) / 2. STEEPNESS is (k_x, k_y).
STEEPNESS = np.array([1.0, 30.0])
BOTTOM = np.array([2.0, 1.0])
VALLEY_START = np.array([-1.5, -0.6])
VALLEY = {
    "SGD": lambda w, g, m, v, t: sgd_step(w, g, 0.05),
    "momentum": lambda w, g, m, v, t: momentum_step(w, g, v, 0.02, 0.8),
    "Adam": partial(adamw_step, lr=0.15),
    "AdamW": partial(adamw_step, lr=0.15, decay=0.3),
}


def valley_loss(w):
    return (STEEPNESS * (w - BOTTOM) ** 2).sum(-1) / 2


def valley(args, table):
    """Trains two weights, x and y, on a loss that is steep in y and flat in x (the valley). Returns
    {name of the optimizer: its path}. A path is (steps + 1, 2): the weights before the first step
    and after each step."""
    paths = {}
    for name, step in VALLEY.items():
        w = VALLEY_START.copy()
        m = np.zeros(2)
        v = np.zeros(2)
        path = [w.copy()]
        for t in range(1, args.steps + 1):
            step(w, STEEPNESS * (w - BOTTOM), m, v, t)
            path.append(w.copy())
        paths[name] = np.array(path)
    distance = paths["SGD"][-1] - BOTTOM
    theory = (1 - 0.05 * STEEPNESS) ** args.steps * (VALLEY_START - BOTTOM)
    # The bound is for float64. Each step rounds a number near 2 once
    table.row("SGD: x - 2 after all steps", float(distance[0]), float(theory[0]), "abs<1e-13")
    for name, path in paths.items():
        table.row(f"{name}: the last loss on the valley", float(valley_loss(path[-1])),
                  float(valley_loss(path[0])), "<=")
    return paths


def bias_correction(table):
    """Part 2: checks Adam's first step, with and without bias correction."""
    # the gradients are powers of two, so every operation of the first step is exact
    g = np.concatenate([2.0 ** np.arange(-20, 21), -(2.0 ** np.arange(-20, 21))])
    first = run(partial(plain.adam_step, lr=0.1, eps=0.0), np.zeros_like(g), [g])
    unlike = int((first != -0.1 * np.sign(g)).sum())
    table.row("Adam's first step: weights where it is not +-lr, of 82", unlike, 0, "exact")
    ours = run(partial(adamw_step, lr=0.1, eps=0.0), np.zeros_like(g), [g])
    table.row("31a: the first step / lr, the largest", float(np.abs(ours).max() / 0.1), 1.0,
              "rel<1e-14")
    # Without the correction, m is not divided by 1 - b1^t, and v is not divided by 1 - b2^t.
    raw = 0.1 * (1 - 0.9) * g / np.sqrt((1 - 0.999) * g**2)
    table.row("without the correction: the first step / lr", float(np.abs(raw).max() / 0.1),
              (1 - 0.9) / math.sqrt(1 - 0.999), "rel<1e-14")
    w = run(partial(adamw_step, lr=0.1, eps=0.0), np.zeros(1), [np.full(1, 7.0)] * 100)
    # each of 100 steps has some roundings of float64
    table.row("100 steps with a constant gradient: -w / lr", -w.item() / 0.1, 100.0, "rel<1e-12")


SIZES = np.array([0.5, 2.0, 10.0, 100.0])  # the sizes G
RATE = 0.01


def decays(args, table):
    """Part 3: computes the decay of weights with gradients +G, -G, +G, ... Returns {name: array},
    where name is "AdamW" or "Adam with L2". The array has the shape (steps + 1, number of sizes).
    Column j has the weight before the first step and after each step, for the size G = SIZES[j]."""
    # For each G there are two weights with opposite gradients. In the mean of the two weights the
    # steps +lr and -lr cancel, so only the decay is left. The arrays are (2, number of sizes).
    signs = np.array([[1.0], [-1.0]])
    paths = {}
    for way in ("AdamW", "Adam with L2"):
        w = np.ones((2, len(SIZES)))
        m = np.zeros_like(w)
        v = np.zeros_like(w)
        path = [w.mean(0)]
        for t in range(1, args.decay_steps + 1):
            g = signs * SIZES * (-1.0) ** t
            if way == "AdamW":
                adamw_step(w, g, m, v, t, RATE, DECAY)
            else:
                adamw_step(w, g + DECAY * w, m, v, t, RATE)
            path.append(w.mean(0))
        paths[way] = np.array(path)
    for i, size in enumerate(SIZES):
        table.row(f"AdamW: a weight with gradients +-{size:g}", float(paths["AdamW"][-1, i]),
                  float(decayed("AdamW", size, args.decay_steps)), "rel<1e-11")
        # The formula is not exact, for two reasons. The decay also changes sqrt(v'), by the factor
        # 1 + (decay w / G)^2 / 2 or less. And m' follows w about ten steps late, with a change of
        # lr decay / G in each step. Each reason makes a relative error of less than 0.1 / G
        table.row(f"Adam with L2: a weight with gradients +-{size:g}",
                  float(paths["Adam with L2"][-1, i]),
                  float(decayed("Adam with L2", size, args.decay_steps)),
                  f"rel<{0.1 / size:.3g}")
    return paths


def decayed(way, size, n_steps):
    """Returns the weight after n_steps by the formula of part 3, for w0 = 1. way: "AdamW" or "Adam
    with L2". size: the size G of the gradients +G, -G, +G, ..."""
    if way == "AdamW":
        size = 1.0
    return (1 - RATE * DECAY / size) ** n_steps


def clipping(t, args, table):
    """Part 4: checks clipping by the global norm, over several arrays and over all ranks."""
    draw = np.random.default_rng(4)
    gradients = [draw.normal(size=shape) * 3 for shape in ((8, 3), (17,), (2, 2, 5))]
    norm = math.sqrt(sum((g**2).sum() for g in gradients))
    ours = [g.copy() for g in gradients]
    plain.clip(ours, 1.0)
    # the bound is for a float64 sum of about 60 squares
    table.row("norm after clipping to 1", math.sqrt(sum((g**2).sum() for g in ours)),
              norm / (norm + 1e-6), "rel<1e-13")

    weights = [put(args, minidl.tensor(np.zeros_like(g))).requires_grad_() for g in gradients]
    for w, g in zip(weights, gradients, strict=True):
        w.grad = put(args, minidl.tensor(g.copy()))
    nn.utils.clip_grad_norm_(weights, 1.0)
    apart = max(float(np.abs(host(w.grad) - g).max())
                for w, g in zip(weights, ours, strict=True))
    table.row("clipping: difference from nn.utils.clip_grad_norm_", apart, 0.0, "abs<1e-14")

    whole = np.concatenate([g.ravel() for g in gradients])
    by_value = np.clip(whole, -1, 1)
    table.row("cosine of the angle to g: by the global norm", cosine(whole, np.concatenate(
        [g.ravel() for g in ours])), 1.0, "rel<1e-13")
    table.row("cosine of the angle to g: every number cut to [-1, 1]", cosine(whole, by_value))

    part = np.array_split(whole, t.size)[t.rank]
    square_sum = ring.all_reduce(t, np.array([(part**2).sum()]))
    table.row("the norm from the ranks' parts", math.sqrt(square_sum[0]), norm, "rel<1e-13")


def cosine(a, b):
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def schedules(table):
    """Part 5: checks lr at some steps, and compares the schedule with minidl.optim's schedule."""
    warmup, total, lr = 8, 40, 0.3
    lrs = [plain.schedule(step, warmup, total, lr) for step in range(total)]
    table.row("schedule: lr of the first step, lr / warmup", lrs[0], lr / warmup, "exact")
    table.row("schedule: lr at the end of the warm-up", lrs[warmup - 1], lr, "exact")
    table.row("schedule: lr half way down, lr / 2", lrs[(warmup + total) // 2], lr / 2, "exact")
    table.row("schedule: lr of the last step", lrs[-1],
              lr * math.sin(math.pi / 2 / (total - warmup)) ** 2, "rel<1e-12")  # 1 + cos = 2 sin^2
    sgd = optim.SGD([minidl.tensor(np.zeros(1), requires_grad=True)], lr=lr)
    scheduler = SequentialLR(sgd, [LinearLR(sgd, 1 / warmup, 1.0, total_iters=warmup - 1),
                                   CosineAnnealingLR(sgd, T_max=total - warmup)], [warmup])
    apart = 0.0
    for wanted in lrs:
        apart = max(apart, abs(sgd.param_groups[0]["lr"] / wanted - 1))
        sgd.step()
        scheduler.step()
    # minidl's scheduler multiplies the lr of the last step by a factor, so each step adds a
    # rounding error.
    table.row("schedule: relative difference from minidl's", apart, 0.0, "abs<1e-12")


def starts(width):
    """Returns {name of the initialisation: variance of the weights}, for a layer with `width`
    inputs and `width` outputs."""
    he = he_variance((width, width))
    return {
        "He": he,
        "Xavier": 2 / (width + width),
        "too small: He / 4": he / 4,
        "too large: 2 He": 2 * he,
    }


def through_layers(args, table):
    """Part 6: computes mean squares of the activations of ten layers. Returns {name of the
    initialisation: an array (networks, layers + 1)}. The array has the mean squares of the input
    and of each layer's output."""
    width, n_networks = args.width, args.networks
    draw = np.random.default_rng(6)
    found = {}
    for name, variance in starts(width).items():
        h = draw.standard_normal((n_networks, width, 1), np.float32)
        squares = [(h**2).mean((1, 2))]
        for _ in range(N_LAYERS):
            weights = draw.standard_normal((n_networks, width, width), np.float32)
            h = np.maximum(math.sqrt(variance) * weights @ h, 0)
            squares.append((h**2).mean((1, 2)))
        found[name] = np.array(squares).T
        # the mean squares are divided by the mean square of the first layer's input
        ratio = float((found[name][:, -1] / found[name][:, 0]).mean())
        bound = 4 * math.sqrt(((1 + 5 / width) ** N_LAYERS - 1) / n_networks)
        table.row(f"{name}: mean square behind ten layers", ratio,
                  (width * variance / 2) ** N_LAYERS, f"rel<{bound:.3f}")

    kernels = minidl.tensor(np.zeros((64, 16, 3, 3), np.float32))
    nn.init.kaiming_normal_(kernels, nonlinearity="relu", generator=minidl.Generator(31))
    measured = float((host(kernels).astype(float) ** 2).mean())
    # the mean of the squares of N normal numbers has a relative standard deviation of sqrt(2 / N)
    bound = 4 * math.sqrt(2 / kernels.numel())
    table.row("31b: variance of (64, 16, 3, 3) by kaiming_normal_", measured,
              he_variance((64, 16, 3, 3)), f"rel<{bound:.3f}")
    gain = nn.init.calculate_gain("leaky_relu", 0.2)
    table.row("31b: He's variance for slope 0.2", he_variance((9, 50), 0.2), gain**2 / 50,
              "rel<1e-14")
    return found


def main(t, args):
    table = Table(t)
    say(t, "1. Four optimizers by hand, compared with minidl.optim.")
    four_optimizers(args, table)
    paths = valley(args, table)
    say(t, "2. Bias correction: Adam's first step.")
    bias_correction(table)
    say(t, "3. AdamW and Adam with L2: weights with gradients of different sizes.")
    weights = decays(args, table)
    say(t, "4. Clipping by the global norm.")
    clipping(t, args, table)
    say(t, "5. Warm-up and cosine.")
    schedules(table)
    say(t, f"6. Mean squares through {N_LAYERS} layers, {args.networks} networks for each start.")
    squares = through_layers(args, table)
    picture(t, args, draw, paths, weights, squares)
    return table


OPTIONS = {
    "steps": (40, "number of steps on the valley in part 1"),
    "decay_steps": (1000, "number of steps in part 3"),
    "width": (128, "number of inputs, and of outputs, of a layer in part 6"),
    "networks": (64, "number of networks for each initialisation in part 6"),
}


def draw(plt, paths, weights, squares):
    """Draws three plots. Left: the paths of the optimizers on the valley. Middle: weights that
    decay. Right: the mean square of the activations after each layer."""
    figure, (map_of, decay, layers) = plt.subplots(1, 3, figsize=(17, 5.2),
                                                   width_ratios=(1.25, 1, 1))
    x, y = np.meshgrid(np.linspace(-2, 3.2, 200), np.linspace(-0.9, 2.7, 200))
    loss = valley_loss(np.stack([x, y], axis=-1))
    map_of.contourf(x, y, loss, levels=[0, 0.3, 1, 3, 7, 15, 30, 60], cmap="Greys", alpha=0.35)
    colours = {"SGD": RED, "momentum": ORANGE, "Adam": BLUE, "AdamW": GREEN}
    for name, path in paths.items():
        map_of.plot(*path.T, ".-", color=colours[name], linewidth=1.3, markersize=5, label=name)
    map_of.plot(*BOTTOM, "*", color="black", markersize=13)
    map_of.annotate("least loss", BOTTOM, (22, 8), textcoords="offset points")
    map_of.annotate("start", VALLEY_START, (-6, -16), textcoords="offset points")
    map_of.set(title="Paths on a narrow valley: AdamW's decay pulls it to 0", xlabel="x",
               ylabel="y", xlim=(-2, 3.2), ylim=(-0.9, 2.7))
    map_of.legend(loc="upper left", ncols=2)

    n_steps = len(weights["AdamW"]) - 1
    steps = np.arange(n_steps + 1)
    shades = [RED, ORANGE, BLUE, GREEN]
    for i, size in enumerate(SIZES):
        path = weights["Adam with L2"][:, i]
        decay.plot(steps, path, color=shades[i])
        decay.text(n_steps * 1.02, path[-1], f"G = {size:g}", color=shades[i], va="center")
        decay.plot(steps, decayed("Adam with L2", size, steps), ":", color="black", linewidth=1.2)
    decay.plot(steps, weights["AdamW"][:, 0], color=GREY, linewidth=5, alpha=0.5)
    decay.text(n_steps * 1.02, weights["AdamW"][-1, 0], "AdamW, all G", color=GREY, va="center")
    decay.set(title="Weights with gradients +G, -G, ...\nAdam with L2; dotted: the formula",
              xlabel="step", ylabel="weight", xlim=(0, n_steps * 1.32), ylim=(0, 1.03),
              xticks=np.linspace(0, n_steps, 5).round().astype(int))

    for (name, found), colour in zip(squares.items(), (BLUE, ORANGE, GREY, RED), strict=True):
        ratio = found / found[:, :1]
        layers.plot(ratio.mean(0), "o-", color=colour, label=name)
        step = {"He": 1, "Xavier": 2, "too small: He / 4": 4, "too large: 2 He": 0.5}[name]
        layers.plot((1 / step) ** np.arange(ratio.shape[1]), ":", color="black", linewidth=1.2)
    layers.set(title="Mean square of the activations, ReLU\nDotted: the formula", xlabel="layer",
               yscale="log")
    layers.legend(loc="lower left")
    return figure


if __name__ == "__main__":
    launch(main, OPTIONS)
