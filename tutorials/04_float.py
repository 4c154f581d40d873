"""04  Lost precision: the error of a sum.      30 minutes, needs: NumPy

A float keeps a fixed number of digits. If you add a small number to a much larger number, the small
number is lost.

    python tutorials/04_float.py                  one process; picture: out/04_float.png

A number with p bits of fraction is m 2^e, where m is an integer with 2^p <= m < 2^(p+1). The
distance to the next number is one unit in the last place (ulp). An ulp is at most 2^-p times the
number. Every operation rounds to the nearest number. So the relative error is at most u = 2^-(p+1).

    fp16  p = 10    fp32  p = 23    fp64  p = 52    bf16  p = 7

So adding less than half an ulp changes nothing ("swamping"): 1 + 1 + 1 ... stops at 2^(p+1). For a
sum of n numbers with S = sum |x| the error is at most

    one after the other   (n - 1) u S      each addition rounds the sum so far
    pairwise              log2(n) u S      a tree: each number is in only log2(n) additions
    Kahan's               2 u S            it computes the lost part, and adds it one step later

A training step changes w by lr g. If lr g is below half an ulp of w, then w never changes, even
after a million steps. A copy of w with more bits does change. That is why fp16 weights have an fp32
master copy.

Sources: Kahan, "Further remarks on reducing truncation errors", Communications of the ACM 8, 1965;
Higham, "Accuracy and Stability of Numerical Algorithms", 2002, chapter 4.
Exercises: `minidl exercise 04` writes work/04_float.py with the marked regions empty;
`minidl check 04` grades it.
"""

import math

import numpy as np

import minidl
from minidl.course.out import BLUE, GREEN, GREY, RED, line_at
from minidl.course.tutorial import Table, WrongOption, launch, picture, say

FORMATS = {np.float16: 10, np.float32: 23, np.float64: 52}  # bits of fraction
STARTS = {np.float16: 0, np.float32: 2**24 - 5, np.float64: 2**53 - 5}  # counting from 0 is slow
try:
    FORMATS[minidl.bfloat16.type], STARTS[minidl.bfloat16.type] = 7, 0
except ImportError:  # then the table has no bfloat16 rows. pip install 'minidl[bfloat16]' adds them
    pass


def in_order(x):
    """Returns x[0] + x[1] + ..., from left to right. Every sum is rounded to x's type."""
    return np.add.accumulate(x)[-1]


def pairwise(x):
    """Returns the sum of x, by a tree of additions in x's type. x has any length >= 1."""
    # >>> exercise 04a: a sum as a tree
    # Add neighbours: x[0] + x[1], x[2] + x[3] ... This leaves half of the numbers. Repeat until one
    # number is left. If a round has an odd count, its last number goes to the next round unchanged.
    while len(x) > 1:
        pairs = x[: len(x) // 2 * 2]
        x = np.concatenate([pairs[0::2] + pairs[1::2], x[len(pairs) :]])
    return x[0]
    # <<<


def kahan(x):
    """Returns the sum of x by Kahan's method. Adds in order, and all numbers have x's type."""
    total = lost = x.dtype.type(0)
    # >>> exercise 04b: Kahan's sum
    # For each number, let y be the number minus the loss of the addition before. Add y to the
    # total. Now the total has grown by (new total - old total). The new loss is this growth,
    # minus y.
    for number in x:
        y = number - lost
        new = total + y
        lost = (new - total) - y
        total = new
    # <<<
    return total


def stops_at(dtype, start):
    """Adds 1 again and again, from start. Returns the number that no longer changes."""
    x = dtype(start)
    while x + dtype(1) != x:
        x += dtype(1)
    return float(x)


def largest_ignored(dtype):
    """Returns log2 of the largest power of two u with 1 - u = 1 in this type."""
    power = 0
    while dtype(1) - dtype(2.0**power) != dtype(1):
        power -= 1
    return power


def train(update, n):
    """Subtracts `update` n times from a weight of 1, in three ways.

    Returns the weight after each step, (n, 3). The columns are: fp16; an fp32 master copy; fp16
    with Kahan's remainder."""
    half = np.float16(1)
    master = np.float32(1)
    kept = np.float16(1)
    lost = np.float16(0)
    paths = []
    for _ in range(n):
        half = half - np.float16(update)
        master = master - np.float32(update)
        y = np.float16(-update) - lost
        new = kept + y
        lost = (new - kept) - y
        kept = new
        paths.append((float(half), float(master), float(kept)))
    return np.array(paths)


def main(t, args):
    if args.device != "cpu":
        raise WrongOption("wanted --device cpu, because this tutorial adds one number after "
                          "another; got --device cuda. 05_amp.py shows the precisions of a GPU")
    table = Table(t)
    say(t, "1. Swamping: 1 + 1 + 1 + ...")
    for dtype, start in STARTS.items():
        name = np.dtype(dtype).name
        p = FORMATS[dtype]
        end = int(stops_at(dtype, start))
        table.row(f"{name}: 1 + 1 + ... ends at", end, 2 ** (p + 1), "exact")
        # Below 1, the distance between two neighbouring numbers is half the distance above 1.
        table.row(f"{name}: largest u with 1 - u = 1, log2", largest_ignored(dtype), -(p + 2),
                  "exact")

    say(t, "2. Three ways to compute the sum of n numbers in fp32, for n from 2^4 to 2^16.")
    curves = {"in order": [], "pairwise": [], "Kahan": []}
    sizes = [2**i for i in range(4, 17)]
    u = 2.0**-24
    ways = {"in order": in_order, "pairwise": pairwise, "Kahan": kahan}
    for n in sizes:
        errors = {name: [] for name in ways}
        for stream in range(5):
            x = minidl.Generator(1, stream).uniform(n)
            exact = math.fsum(x.tolist())
            for name, add in ways.items():
                errors[name].append(abs(float(add(x)) - exact) / (u * exact))
        for name in ways:
            curves[name].append(errors[name])
    curves = {name: np.array(errors) for name, errors in curves.items()}  # (sizes, samples)
    for name, errors in curves.items():
        table.row(f"{name}: mean error / (u S), n = 2^16", float(errors[-1].mean()))
        worst = (errors / np.array(bounds(name, sizes))[:, None]).max()
        table.row(f"{name}: the worst error / its bound", float(worst), 1.0, "<=")

    say(t, f"3. {args.n_steps} updates of 2^-13 to a weight of 1.")
    update = 2.0**-13
    paths = train(update, args.n_steps)
    wanted = 1 - args.n_steps * update
    table.row("fp16: weight", float(paths[-1, 0]), 1.0, "exact")
    table.row("fp32 master: weight", float(paths[-1, 1]), wanted, "exact")
    # The weight differs from the exact value by at most one ulp. Just below 1, an ulp is 2^-11.
    table.row("fp16 with Kahan's remainder: weight", float(paths[-1, 2]), wanted, "abs<0.0005")
    picture(t, args, draw, sizes, curves, paths)
    return table


def bounds(name, sizes):
    return [{"in order": n - 1, "pairwise": math.log2(n), "Kahan": 2.0}[name] for n in sizes]


def draw(plt, sizes, curves, paths):
    """Draws three plots. Left: half an ulp of fp16 and fp32. Middle: errors of three sums. Right: a
    weight after each step."""
    figure, (spacing, left, right) = plt.subplots(1, 3, figsize=(16, 5.2))
    x = np.geomspace(1e-3, 60000, 400)
    for dtype, name, colour in ((np.float16, "fp16", RED), (np.float32, "fp32", BLUE)):
        gap = np.spacing(x.astype(dtype)).astype(np.float64) / 2
        spacing.loglog(x, gap, color=colour)
        spacing.text(2e-3, 4 * gap[60], name, color=colour)
    spacing.plot(2048, 1, "o", color=RED)
    line_at(spacing, "", x=2048, color=GREY)
    line_at(spacing, "2048 + 1 = 2048", y=1, at=0.3)
    spacing.set(title="To add less than half an ulp changes nothing", xlabel="number",
                ylabel="half an ulp")

    for (name, errors), colour in zip(curves.items(), (RED, BLUE, GREEN), strict=True):
        left.loglog(sizes, errors.mean(1), "o-", color=colour, label=name)
        left.loglog(sizes, bounds(name, sizes), "--", color=colour, linewidth=1)
    left.set(title="Three sums of n numbers in fp32 (dashed: bound)", ylim=(0.1, 2e5),
             xlabel="n", ylabel="mean error, in units of u S")
    left.legend(loc="upper left")

    for path, name, colour, width in zip(
            paths.T, ("fp16: stays", "fp32 master", "fp16, Kahan's remainder"), (RED, BLUE, GREEN),
            (2, 6, 1.5), strict=True):
        right.plot(path, color=colour, linewidth=width, label=name)
    right.set(title="A weight of 1 and updates of $2^{-13}$", xlabel="step", ylabel="weight")
    right.legend(loc="lower left")
    return figure


OPTIONS = {"n_steps": (1000, "updates of the weight")}

if __name__ == "__main__":
    launch(main, OPTIONS)
