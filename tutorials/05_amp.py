"""05  Mixed precision and loss scaling.                  45 minutes, needs: 01, 04

fp16 gradients below 2^-25 become 0. If the loss is multiplied by a large scale, they do not become
0. Dynamic scaling finds the scale during training.

    python tutorials/05_amp.py                    one process; picture: out/05_amp.png

fp16 has 5 bits of exponent and 10 of fraction:

    becomes 0  |  fewer digits  |      11 binary digits        |  becomes inf
             2^-25            2^-14                         65504

fp16 costs half the memory of fp32. On a GPU it is also faster. But gradients are small. If
gradients are normally distributed with standard deviation sigma, the error function gives the part
of them that becomes 0. A factor S makes this part smaller. The chain rule is linear, so S times the
loss gives S times every gradient:

    P(|S g| <= 2^-25) = erf(2^-25 / (S sigma sqrt 2))         S max|g| <= 65504

S is a power of two, so scaling does not round. The largest safe S depends on the gradients, and it
changes during training. So training finds it by trying. An inf in a gradient shows that S is too
large: then halve S and skip the step. After N good steps, double S. A step divides the gradients by
S in fp32, because in fp16 they can become 0 again. Then it looks for inf in the gradients, and
clips their norm. At the end it updates an fp32 master copy of the weights, and rounds the copy to
fp16. Without the master copy, an update below half of the last digit does not change an fp16
weight. Part 3 uses the names of NVIDIA's library apex for four levels of precision. The step above
is level O2:

    O0   all fp32                  O1   products in fp16, sums and exponentials in fp32 (autocast)
    O3   all fp16                  O2   fp16 weights, fp32 master copies, a scaled loss

Paper: Micikevicius et al., "Mixed precision training", 2018, arXiv 1710.03740.
minidl's own code: minidl/precision/amp.py, grad_scaler.py, optim/master.py.
Exercises: `minidl exercise 05` writes work/05_amp.py with the marked regions empty;
`minidl check 05` grades it.
"""

import math

import numpy as np

import minidl
from minidl import nn
from minidl.course.out import BLUE, ORANGE, RED, line_at
from minidl.course.tutorial import Table, host, launch, picture, progress, put, say
from minidl.data import datasets
from minidl.nn import functional as F
from minidl.precision import amp

SMALLEST, LARGEST = 2.0**-25, 65504.0  # in fp16 SMALLEST becomes 0, LARGEST is not yet inf
WEIGHT = 2.0**-18  # the loss is multiplied by it, so gradients are as small as in a deep network
BATCH = 128
HUGE = 2.0**44  # a first scale that is certainly too large


class DynamicLossScaler:
    """The scale S of the loss. An overflow halves S, and `interval` good steps double S."""

    def __init__(self, scale, interval):
        self.scale, self.interval = scale, interval
        self.good_steps = self.skipped = 0

    def update(self, overflow):
        """Call it after each step. overflow: True if the step was skipped because of inf or nan."""
        # >>> exercise 05a: the dynamic scale
        # If overflow: halve self.scale, add 1 to self.skipped, and start to count good steps again
        # from 0. Otherwise: add 1 to self.good_steps. When it reaches self.interval, double
        # self.scale, and start to count good steps again from 0.
        if overflow:
            self.scale /= 2
            self.good_steps = 0
            self.skipped += 1
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.scale *= 2
            self.good_steps = 0
        # <<<


def mixed_step(weights, masters, grads, scale, lr, max_norm):
    """Does one SGD step. If a gradient has inf or nan, it changes nothing and returns True.
    Otherwise it changes the weights and returns False.

    weights: fp16 arrays; masters: their fp32 copies; grads: fp16 gradients of the loss times
    `scale`. The norm of all gradients together is clipped to max_norm: if it is larger, multiply
    every gradient by max_norm / norm."""
    # >>> exercise 05b: one step in mixed precision
    # In this order: unscale in fp32; look for inf and nan (np.isfinite); clip; update the masters
    # in place; copy them into the weights in place.
    unscaled = [g.astype(np.float32) / np.float32(scale) for g in grads]
    if not all(np.isfinite(g).all() for g in unscaled):
        return True
    norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in unscaled))
    factor = np.float32(lr * min(1.0, max_norm / norm) if norm else lr)
    for weight, master, g in zip(weights, masters, unscaled, strict=True):
        master -= factor * g
        weight[...] = master
    return False
    # <<<


def loss_of(model, args, digits, i):
    """Returns the loss on batch i of the digits. Every precision gets the same samples."""
    rows = minidl.Generator(1, stream=i).integers(0, len(digits), (BATCH,))
    images, labels = digits[rows]
    images = minidl.Tensor(put(args, images).reshape(-1, 64))
    return F.cross_entropy(model(images), put(args, labels))


def new_model(args, level):
    """Returns a model at one of apex's levels. The initial weights are the same at every level."""
    minidl.manual_seed(0)
    model = put(args, nn.MLP(64, 64, 10, activation=nn.Tanh))
    amp.prepare(model, level)  # casts the weights (O2, O3), or the inputs of products (O1)
    return model


def train(model, args, digits, scaler, steps, with_masters):
    """Trains with mixed_step. Returns (losses, scales, changed).

    losses: the loss on batch 0, before every tenth step and at the end. scales: the scale S at
    every step. changed: how many weights changed in skipped steps. It should be 0."""
    weights = [p.array for p in model.parameters()]
    masters = weights
    if with_masters:
        masters = [w.astype(np.float32) for w in weights]

    losses = []
    scales = []
    changed = 0
    for i in steps:
        if i % 10 == 0:
            losses.append(loss_of(model, args, digits, 0).item())
        scales.append(scaler.scale)

        model.zero_grad()
        before = [w.copy() for w in weights]
        with np.errstate(all="ignore"):  # inf is expected, because the scale can be too large
            (loss_of(model, args, digits, i) * (WEIGHT * scaler.scale)).backward()
        grads = [p.grad.array for p in model.parameters()]
        overflow = mixed_step(weights, masters, grads, scaler.scale,
                              lr=args.lr / WEIGHT, max_norm=WEIGHT)
        if overflow:
            for weight, old in zip(weights, before, strict=True):
                changed += int((weight != old).sum())
        scaler.update(overflow)

    losses.append(loss_of(model, args, digits, 0).item())
    return losses, scales, changed


def fits(g):
    """Returns True if no element of g becomes inf in fp16."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(g.astype(np.float16)).all())


def part_lost(args, table, normal):
    """Takes normally distributed gradients. Counts the part of them that becomes 0 in fp16, at four
    scales.

    Adds rows to the table."""
    for power in (0, 4, 8, 12):
        S = 2.0**power
        lost = float(((S * normal).astype(np.float16) == 0).mean())
        theory = math.erf(SMALLEST / (S * args.sigma * math.sqrt(2)))
        # the bound is four standard deviations of a fraction that is measured with n samples
        bound = 4 * math.sqrt(theory * (1 - theory) / args.n) + 1 / args.n
        table.row(f"S = 2^{power}: part of the gradients that becomes 0", lost, theory,
                  f"abs<{bound:.1g}")


def gradients_of_a_model(args, digits):
    """Returns the nonzero gradients of an fp32 model as one vector.

    The loss is multiplied by WEIGHT, so the gradients are as small as in a deep network."""
    model = new_model(args, "O0")
    (loss_of(model, args, digits, 0) * WEIGHT).backward()
    real = np.concatenate([host(p.grad).reshape(-1) for p in model.parameters()])
    return real[real != 0]  # a pixel that is always black gives gradients of 0


def log2_of_safe(g):
    """Returns log2 of the largest power of two S with S max|g| <= 65504."""
    return math.floor(math.log2(LARGEST / float(np.abs(g).max())))


def largest_scales(table, normal, real):
    """Tries scales S to find the largest S without inf, for normally distributed gradients and for
    the gradients of a model (`real`). Checks that a dynamic scale falls to the largest S for the
    gradients of the model."""
    for whose, g in (("normal", normal), ("the model's", real)):
        largest = max(power for power in range(64) if fits(2.0**power * g))
        theory = log2_of_safe(g)
        table.row(f"{whose} gradients: log2 of the largest safe S", largest, theory, "exact")

    scaler = DynamicLossScaler(HUGE, interval=1)
    for _ in range(30):
        scaler.update(overflow=not fits(scaler.scale * real))
    # With interval=1 the scale doubles after every good step. So when the scale is small enough,
    # every second step overflows.
    to_fall = int(math.log2(HUGE)) - log2_of_safe(real)
    theory = to_fall + (30 - to_fall) // 2
    table.row("steps skipped of 30", scaler.skipped, theory, "exact")


# name: (level of the model, the first scale, True if there are fp32 masters)
RUNS = {
    "O0": ("O0", 1.0, True),
    "O1": ("O1", HUGE, True),
    "O2": ("O2", HUGE, True),
    "O3": ("O3", 1.0, False),
    "no master weights": ("O2", HUGE, False),
    "no loss scaling": ("O2", 1.0, True),
}


def train_all(t, args, digits, table):
    """Trains each of RUNS. Returns ({name: losses}, the scale of O2 at every step)."""
    curves, scales, changed = {}, {}, {}
    for name, (level, scale, with_masters) in RUNS.items():
        model = new_model(args, level)
        interval = 25 if scale > 1 else math.inf  # a scale of 1 never changes
        scaler = DynamicLossScaler(scale, interval)
        steps = progress(t, range(args.steps), name)
        curves[name], scales[name], changed[name] = train(
            model, args, digits, scaler, steps, with_masters)
    table.row("O2: weights that a skipped step changed", changed["O2"], 0, "exact")

    first, last = curves["O0"][0], curves["O0"][-1]
    for name in ("O1", "O2"):  # O1 and O2 do fewer steps, because they skip the first steps
        table.row(f"last loss of {name} (theory: last loss of O0)", curves[name][-1], last,
                  "rel<0.002")
    # Without master weights or loss scaling, the loss falls at most half as much as in fp32.
    for name in ("no master weights", "no loss scaling", "O3"):
        way = (first - curves[name][-1]) / (first - last)
        table.row(f"{name}: fall of the loss / its fall with O0", way, 0.5, "<=")
    return curves, scales["O2"]


def main(t, args):
    table = Table(t)
    say(t, f"1. {args.n:,} normal gradients of standard deviation {args.sigma:g}, in fp16.")
    normal = minidl.Generator(4).normal(args.n) * np.float32(args.sigma)
    part_lost(args, table, normal)

    say(t, "2. The largest scale without inf, for these gradients and for a model's gradients.")
    digits, _ = datasets.digits()
    real = gradients_of_a_model(args, digits)
    largest_scales(table, normal, real)

    say(t, f"3. Training for {args.steps} steps: O0 fp32, O1 autocast, O2 fp16 with fp32 masters,\n"
           "   O3 fp16. Then O2 without masters, and O2 without loss scaling.")
    curves, scales = train_all(t, args, digits, table)
    picture(t, args, draw, normal, real, curves, scales, log2_of_safe(real))
    return table


def draw(plt, g, real, curves, scales, safe):
    """Draws histograms of S g for four scales S (left). Right: the losses, and the dynamic
    scale."""
    figure = plt.figure(figsize=(14, 8))
    left, right = figure.subfigures(1, 2, width_ratios=(1.15, 1))
    panels, (above, below) = left.subplots(4, 1, sharex=True), right.subplots(2, 1)
    for axes, power in zip(panels, (0, 4, 8, 12), strict=True):
        for start, stop, colour in ((-46, -25, RED), (-25, -14, ORANGE), (16, 19, RED)):
            axes.axvspan(start, stop, color=colour, alpha=0.18, linewidth=0)
        lost = []
        for values, style in ((g, {"color": "#6baed6"}),
                              (real, {"histtype": "step", "color": BLUE, "linewidth": 1.5})):
            size = np.log2(np.abs(values[values != 0]).astype(np.float64)) + power
            axes.hist(size, range(-46, 20), weights=np.full(len(size), 100 / len(values)), **style)
            lost.append(100 * float(((2.0**power * values).astype(np.float16) == 0).mean()))
        axes.text(-8, 26, f"$S = 2^{{{power}}}$", fontsize=13)
        axes.text(-8, 15, f"lost: {lost[0]:.1f}% of the normal,\n{lost[1]:.1f}% of the model's",
                  fontsize=11, color=RED, va="center")
        axes.set(xlim=(-46, 19), ylim=(0, 35), ylabel="%")
    left.suptitle("Gradients in fp16's range: normal (filled), a model's (line)")
    for place, word in ((-35.5, "becomes 0"), (-19.5, "fewer digits"), (1, "full precision"),
                        (17.5, "inf")):
        for axes in panels[::2]:  # writes above the first and the third panel
            axes.text(place, 36, word, ha="center", fontsize=11)
    panels[-1].set_xticks([-40, -25, -14, 0, 16],
                          ["$2^{-40}$", "$2^{-25}$", "$2^{-14}$", "1", "65504"])
    panels[-1].set_xlabel("|S g|")

    styles = {"O0": ("#969696", "-", 6), "O1": ("#fd8d3c", "-", 3.5), "O2": (BLUE, "-", 1.5),
              "no master weights": (RED, "-", 2), "no loss scaling": ("#fcae91", "-", 5),
              "O3": ("black", ":", 2)}
    for name, (colour, line, width) in styles.items():
        steps = range(0, 10 * len(curves[name]), 10)
        above.plot(steps, curves[name], line, color=colour, linewidth=width, label=name)
    above.set(title="Without masters or loss scaling, training stops", xlabel="training step",
              ylabel="cross entropy (nats)")
    above.legend(fontsize=10, ncols=2)
    below.step(range(len(scales)), np.log2(scales), where="post", color=BLUE)
    line_at(below, "largest safe scale at the start", y=safe)
    below.set(title="The scale falls until it fits, then rises again", xlabel="training step",
              ylabel="log2 of the scale S", ylim=(safe - 3, None))
    return figure


OPTIONS = {
    "n": (1_000_000, "normal gradients"),
    "sigma": (1e-7, "standard deviation of the normal gradients"),
    "steps": (300, "training steps"),
    "lr": (0.0005, "learning rate of the training steps"),
}

if __name__ == "__main__":
    launch(main, OPTIONS)
