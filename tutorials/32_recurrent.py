"""32  Recurrence: gradients through time, gates, and scans.   50 minutes, needs: 01, 07

    mpirun -n 4 python tutorials/32_recurrent.py        (or: minidl run -n 4 ...)
    python tutorials/32_recurrent.py --sim 4            picture: out/32_recurrent.png

A recurrent layer has a state h_t. Each step computes the next state from the last state:

    h_t = tanh(x_t + W h_{t-1})          t = 1, ..., T         x_t is computed from the input

1. Backpropagation through time is the chain rule, from the last step to the first. Let gh be the
gradient of the loss with respect to h_t. A part of it comes from the loss at step t, the other part
from step t + 1. Then (exercise 32a)

    gx = gh (1 - h_t^2)         the gradient with respect to x_t, and to all of x_t + W h_{t-1}
    gW = gW + gx h_{t-1}^T      every step uses the same W, so the gradients add up
    gh = W^T gx                 for h_{t-1}; the part from the loss at t - 1 is then added

2. T steps multiply the gradient T times by W^T, the transposed W. Let W be rho Q. Q is orthogonal,
so it changes no norm. Then without tanh the norm of the gradient is multiplied by exactly rho^T,
rho to the power T. So the gradient vanishes for rho < 1 and explodes for rho > 1. With tanh each
step also multiplies by 1 - h^2, which is at most 1. So the norm is multiplied by at most rho^T. For
other matrices W, a step multiplies the norm by at most the largest singular value. After many steps
the norm depends on the spectral radius, the largest |eigenvalue|.

3. The LSTM has a state h and a cell c. No matrix multiplies the cell:

    c_t = f_t c_{t-1} + i_t g_t         h_t = o_t tanh(c_t)

The direct path from c_T back to c_0 multiplies the gradient by f_T ... f_1, the forget gates. Gates
near 1 keep the gradient. If the gates depend only on the input (W = 0), there is no other path, and
this product is the whole gradient. If the forget gate has the bias b, the product is about
sigmoid(b)^T.

4. Without tanh the loop can be divided. Step t is h -> a_t h + b_t, so the pair (a_t, b_t)
describes it. Two steps, one after the other, are again such a step:

    first (a1, b1), then (a2, b2):    a2 (a1 h + b1) + b2  =  (a1 a2) h + (a2 b1 + b2)

So pairs can be combined, in any grouping: the operation is associative (exercise 32b). A scan finds
all T states in few rounds. The combinations of a round do not depend on each other. So a computer
can do them at the same time:

    the loop               T rounds                     T combinations
    Hillis and Steele      log2 T rounds                T log2 T - T + 1 combinations
    Blelloch               2 log2 T + 1 rounds          3 T - 2 combinations

Ranks divide the T steps in the same way. Each rank combines its steps to one pair, and gets the
pairs of all ranks. So it knows the state before its first step, and computes the states of its
steps. (Martin & Cundy; Mamba's layers do this.)

With tanh there is no such pair. Let h be the state in the middle of the T steps. In a linear
recurrence, the results for h = 0 and h = 1 give the result for every h. With tanh these two results
tell little about the result for another h.

The real layers: minidl/ops/extra/recurrent.py, minidl/nn/recurrent.py. Papers: Werbos 1990; Bengio
et al. 1994; Pascanu et al. 2012, arXiv 1211.5063; Hochreiter & Schmidhuber 1997; Gers et al. 2000
(forget gate); Hillis & Steele 1986; Blelloch 1990; Martin & Cundy 2018, arXiv 1709.04057; Gu & Dao
2023, arXiv 2312.00752 (Mamba).
Exercises: `minidl exercise 32` writes work/32_recurrent.py, `minidl check 32` grades it.
"""

import math

import numpy as np

import minidl
from minidl import nn
from minidl.comm import Ledger, ring
from minidl.course.out import BLUE, GREEN, GREY, ORANGE, RED
from minidl.course.tutorial import Table, host, launch, picture, put, say
from minidl.nn import functional as F


def step_back(gh, h, before, w, gw):
    """Does one step of backpropagation through time, for h_t = tanh(x_t + before @ w.T). N:
    samples, H: width. gh: the gradient with respect to h_t, (N, H). h: h_t, before: h_{t-1}, both
    (N, H). w: (H, H). Adds this step's gradient of w to gw, (H, H), in place. Returns (gradient
    with respect to x_t, gradient with respect to h_{t-1}), both (N, H)."""
    # >>> exercise 32a: one step back through time
    # The derivative of tanh is 1 - h^2, where h is the result of tanh. gx is gh times this
    # derivative. In a row of before @ w.T, number j is the sum over k of before[k] w[j, k]. So the
    # gradient of w[j, k] is gx[j] before[k], summed over the N rows: add it to gw. The gradient of
    # before[k] is the sum over j of gx[j] w[j, k].
    gx = gh * (1 - h**2)
    gw += gx.T @ before
    return gx, gx @ w
    # <<<


def combine(first, second):
    """Returns the pair (a, b) of one step h -> a h + b that does what `first` and then `second` do.
    first, second: pairs (a, b) of such steps. All arrays have one shape, and the steps are
    elementwise."""
    # >>> exercise 32b: two steps of a linear recurrence are one
    # After the first step h is a1 h + b1. Put this into a2 h + b2: what multiplies h, and what is
    # added? Make new arrays.
    a1, b1 = first
    a2, b2 = second
    return a1 * a2, a2 * b1 + b2
    # <<<


def forward(x, w, h):
    """Returns the states h_0, ..., h_T, an array (T + 1, N, H). x: (T, N, H). h: h_0."""
    states = [h]
    for x_t in x:
        states.append(np.tanh(x_t + states[-1] @ w.T))
    return np.array(states)


def backward(states, w, gys):
    """Returns the gradients of (x, h_0, w). gys: (T, N, H), the part of the gradient of h_t that
    comes from the loss at step t, for t = 1, ..., T."""
    gw = np.zeros_like(w)
    gx = np.zeros_like(gys)
    gh = np.zeros_like(states[0])
    for t in reversed(range(len(gys))):
        gx[t], gh = step_back(gh + gys[t], states[t + 1], states[t], w, gw)
    return gx, gh, gw


def through_time(args, table):
    """Part 1: compares the loop by hand with minidl's op."""
    draw = np.random.default_rng(32)
    n_steps, n, size = 12, 3, 5
    x = draw.normal(size=(n_steps, n, size))
    h = draw.normal(size=(n, size))
    w = draw.normal(size=(size, size)) / math.sqrt(size)
    gys = draw.normal(size=x.shape)
    states = forward(x, w, h)
    ours = backward(states, w, gys)

    leaves = [put(args, minidl.tensor(value.copy())).requires_grad_() for value in (x, h, w)]
    x_leaf, h_leaf, w_leaf = leaves
    bias = put(args, minidl.tensor(np.zeros(size)))
    ys, _ = F.rnn_sequence(x_leaf, h_leaf, w_leaf, bias, "tanh")
    (ys * put(args, minidl.tensor(gys))).sum().backward()
    # the bound is for float64 sums of some dozens of products
    apart = float(np.abs(host(ys.detach()) - states[1:]).max())
    table.row("states, difference from minidl's RNN", apart, 0.0, "abs<1e-13")
    for name, gradient, leaf in zip(("x", "h_0", "W"), ours, leaves, strict=True):
        apart = float(np.abs(host(leaf.grad) - gradient).max())
        table.row(f"32a: gradient of {name}, difference from minidl's RNN", apart, 0.0, "abs<1e-12")


RADII = (0.9, 1.0, 1.1)


def orthogonal(size, seed=0):
    weight = minidl.tensor(np.zeros((size, size)))
    nn.init.orthogonal_(weight, generator=minidl.Generator(seed))
    q, _ = np.linalg.qr(weight.numpy())  # q is exact to float64, `weight` only to float32
    return q


def vanishing(args, table):
    """Part 2: computes the norms of the gradient after 0, 1, ..., T steps back, and divides them by
    the first norm. Returns {("linear" or "tanh", rho): these ratios, (T + 1,)}."""
    draw = np.random.default_rng(2)
    size, n_steps = 16, args.steps
    q = orthogonal(size)
    start = draw.normal(size=(1, size))
    x = 0.3 * draw.normal(size=(n_steps, 1, size))
    norms = {}
    for rho in RADII:
        w = rho * q
        states = forward(x, w, np.zeros((1, size)))
        for kind in "linear", "tanh":
            gh = start
            found = [np.linalg.norm(gh)]
            gw = np.zeros_like(w)
            for t in reversed(range(n_steps)):
                if kind == "linear":
                    gh = gh @ w
                else:
                    _, gh = step_back(gh, states[t + 1], states[t], w, gw)
                found.append(np.linalg.norm(gh))
            norms[kind, rho] = np.array(found) / found[0]
        # each of the steps has some roundings of float64
        table.row(f"rho {rho:g}: norm of the gradient, linear, {n_steps} steps back",
                  float(norms["linear", rho][-1]), rho**n_steps, "rel<1e-12")
        table.row(f"rho {rho:g}: the same with tanh, at most rho^T",
                  float(norms["tanh", rho][-1]), rho**n_steps, "<=")
    return norms


BIASES = (0.0, 1.0, 5.0)


def gates(args, table):
    """Part 3: computes the gradient of an LSTM's cell. Returns {bias: an array (T + 1,)}. Entry k
    is the product of the last k forget gates, averaged over the numbers of the cell."""
    draw = np.random.default_rng(3)
    size, n_steps = 4, args.steps
    curves = {}
    for bias in BIASES:
        x = draw.normal(size=(n_steps, 1, 4 * size)) * 0.5
        x[:, :, size : 2 * size] += bias  # the order of the gates is i, f, g, o
        forget = 1 / (1 + np.exp(-x[:, 0, size : 2 * size]))
        h = put(args, minidl.tensor(np.zeros((1, size))))
        c = put(args, minidl.tensor(draw.normal(size=(1, size)))).requires_grad_()
        w = put(args, minidl.tensor(np.zeros((4 * size, size))))
        b = put(args, minidl.tensor(np.zeros(4 * size)))
        _, _, last = F.lstm_sequence(put(args, minidl.tensor(x)), h, c, w, b)
        last.sum().backward()
        product = forget.prod(axis=0)
        worst = float(np.abs(host(c.grad)[0] / product - 1).max())
        # each step has some roundings of float64
        table.row(f"LSTM, forget bias {bias:g}: cell's gradient / product of the gates, minus 1",
                  worst, 0.0, "abs<1e-12")
        table.row(f"LSTM, forget bias {bias:g}: the gradient, {n_steps} steps back",
                  float(product.mean()))
        curves[bias] = np.concatenate([[1.0], forget[::-1].cumprod(axis=0).mean(axis=1)])
    return curves


def loop(a, b, h):
    """Returns h_1, ..., h_T of h_t = a_t h_{t-1} + b_t. a, b: (T, ...)."""
    states = []
    for a_t, b_t in zip(a, b, strict=True):
        h = a_t * h + b_t
        states.append(h)
    return np.array(states)


def hillis_steele(a, b):
    """Returns (pairs, number of rounds, number of combinations). a, b: (T, ...), a pair for each
    step. Pair t of the result does the steps 1 to t + 1, for t = 0, 1, ..."""
    a, b = a.copy(), b.copy()
    rounds = combinations = 0
    distance = 1
    while distance < len(a):
        # combine() makes new arrays, so all reads of this round come before its writes
        a[distance:], b[distance:] = combine((a[:-distance], b[:-distance]),
                                             (a[distance:], b[distance:]))
        combinations += len(a) - distance
        rounds += 1
        distance *= 2
    return (a, b), rounds, combinations


def blelloch(a, b):
    """Returns what hillis_steele() returns. T must be a power of two."""
    n_steps = len(a)
    up = a.copy(), b.copy()
    rounds = combinations = 0
    distance = 1
    while distance < n_steps:  # way up: a node combines the pairs of its two children
        left = slice(distance - 1, None, 2 * distance)
        right = slice(2 * distance - 1, None, 2 * distance)
        up[0][right], up[1][right] = combine((up[0][left], up[1][left]),
                                             (up[0][right], up[1][right]))
        combinations += n_steps // (2 * distance)
        rounds += 1
        distance *= 2
    up[0][-1], up[1][-1] = 1, 0  # the pair before the first step changes nothing: h -> h
    while distance > 1:  # way down: the left child gets the pair of all steps before its parent
        distance //= 2
        left = slice(distance - 1, None, 2 * distance)
        right = slice(2 * distance - 1, None, 2 * distance)
        of_left = up[0][left].copy(), up[1][left].copy()
        up[0][left], up[1][left] = up[0][right], up[1][right]
        up[0][right], up[1][right] = combine((up[0][right], up[1][right]), of_left)
        combinations += n_steps // (2 * distance)
        rounds += 1
    combinations += n_steps
    return combine(up, (a, b)), rounds + 1, combinations  # the steps before, then the step itself


def scans(t, args, table):
    """Part 4: compares the loop with two scans, and with steps that are divided over the ranks."""
    draw = np.random.default_rng(4)
    n_steps, size = args.length, 8
    if n_steps & (n_steps - 1):
        n_steps = 1 << n_steps.bit_length()
    a = draw.uniform(0.5, 1.0, (n_steps, size))
    b = draw.normal(size=(n_steps, size))
    h = draw.normal(size=size)
    wanted = loop(a, b, h)
    log = int(math.log2(n_steps))
    theory = {"Hillis and Steele": (log, n_steps * log - n_steps + 1),
              "Blelloch": (2 * log + 1, 3 * n_steps - 2)}
    for name, scan in (("Hillis and Steele", hillis_steele), ("Blelloch", blelloch)):
        (to_a, to_b), rounds, combinations = scan(a, b)
        # The bound is for float64. |h| is about 10, and a < 1 makes the errors of older steps
        # smaller.
        apart = float(np.abs(to_a * h + to_b - wanted).max())
        table.row(f"{name}: difference from the loop", apart, 0.0, "abs<1e-12")
        table.row(f"{name}: rounds for {n_steps} steps", rounds, theory[name][0], "exact")
        table.row(f"{name}: combinations", combinations, theory[name][1], "exact")

    mine = slice(n_steps * t.rank // t.size, n_steps * (t.rank + 1) // t.size)
    ledger = Ledger(t)
    found = over_ranks(ledger, a[mine], b[mine], h)
    apart = float(np.abs(found - wanted[mine]).max()) if len(found) else 0.0
    table.row("time divided over the ranks: difference from the loop", apart, 0.0, "abs<1e-12")
    pairs = np.zeros((t.size, 2, size))
    table.row("bytes sent, for any number of steps", ledger.bytes_sent,
              ring.bytes_sent(pairs.size, pairs.itemsize, t.size, t.rank), "exact")
    return n_steps


def over_ranks(t, a, b, h):
    """Returns the states of this rank's steps. a, b: the pairs of this rank's steps. h: the state
    before the first step of all ranks. A rank sends only one pair, for any number of steps."""
    pairs = np.zeros((t.size, 2, *h.shape))
    mine = np.ones_like(h), np.zeros_like(h)
    for step in zip(a, b, strict=True):
        mine = combine(mine, step)
    pairs[t.rank] = mine
    ring.all_reduce(t, pairs)  # gathers the pairs; each pair is 0 on all ranks except one
    for to_a, to_b in pairs[: t.rank]:
        h = to_a * h + to_b
    return loop(a, b, h)


def halves(table):
    """Computes the result of some steps for h = 3 from the results for h = 0 and h = 1. Compares
    this result with the true result. Does this for a linear recurrence, and for a recurrence with
    tanh."""
    draw = np.random.default_rng(5)
    n_steps = 4
    w = draw.uniform(1.0, 1.5, n_steps)
    b = draw.normal(size=n_steps)
    for kind in "linear", "tanh":
        def run(h, kind=kind):
            for w_t, b_t in zip(w, b, strict=True):
                h = w_t * h + b_t
                if kind == "tanh":
                    h = math.tanh(h)
            return h

        by_two = run(0.0) + 3 * (run(1.0) - run(0.0))  # a line through both results, at h = 3
        apart = abs(run(3.0) - by_two)
        if kind == "linear":
            table.row("linear: h = 3, from the results for 0 and 1, off by", apart, 0.0,
                      "abs<1e-12")
        else:
            table.row("tanh: 0.1, at most what it is off by", 0.1, apart, "<=")


def main(t, args):
    table = Table(t)
    say(t, "1. Backpropagation through time, compared with minidl's RNN.")
    through_time(args, table)
    say(t, f"2. The gradient {args.steps} steps back.")
    norms = vanishing(args, table)
    say(t, "3. The LSTM's cell: the product of the forget gates.")
    curves = gates(args, table)
    say(t, f"4. A linear recurrence as a scan, on {t.size} rank{'s' * (t.size > 1)}, too.")
    scans(t, args, table)
    halves(table)
    picture(t, args, draw, norms, curves)
    return table


OPTIONS = {
    "steps": (100, "number of steps of the recurrences in parts 2 and 3"),
    "length": (1024, "number of steps in part 4; if it is no power of two, the next one is taken"),
}


def draw(plt, norms, curves):
    """Draws three plots. Left: norms of gradients. Middle: the gradient of the LSTM's cell. Right:
    Blelloch's scan of 8 steps."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(17, 5.2), width_ratios=(1, 1, 1.2))
    n_steps = len(norms["linear", RADII[0]]) - 1
    back = np.arange(n_steps + 1)
    for rho, colour in zip(RADII, (BLUE, GREEN, RED), strict=True):
        left.semilogy(back, norms["linear", rho], color=colour, label=f"linear, rho = {rho:g}")
        left.semilogy(back, norms["tanh", rho], "--", color=colour, label=f"tanh, rho = {rho:g}")
    left.set(title="Norm of the gradient: rho to the power of the steps", xlabel="steps back",
             ylim=(1e-14, 1e16))
    left.legend(fontsize=9, ncols=2, loc="upper left")

    for bias, colour in zip(BIASES, (RED, ORANGE, GREEN), strict=True):
        middle.semilogy(back, curves[bias], color=colour, label=f"forget bias {bias:g}")
        gate = 1 / (1 + math.exp(-bias))
        middle.semilogy(back, gate**back, ":", color="black", linewidth=1.2)
    middle.set(title="LSTM: gradient of the cell\nDotted: sigmoid(bias) to the power of the steps",
               xlabel="steps back")
    middle.legend(loc="lower left")
    draw_scan(right)
    return figure


def draw_scan(axes):
    """Draws Blelloch's scan of 8 steps. A column is a step, a row is a round."""
    n, level = 8, 0
    axes.plot(range(n), [0] * n, "o", color=GREY, markersize=9)
    distance = 1
    while distance < n:
        level -= 1
        for node in range(2 * distance - 1, n, 2 * distance):
            axes.plot([node - distance, node], [level + 1, level], color=BLUE, linewidth=1.6)
            axes.plot([node, node], [level + 1, level], color=BLUE, linewidth=1.6)
            axes.plot(node, level, "o", color=BLUE, markersize=9)
        distance *= 2
    axes.text(n - 0.6, -1.5, "up: pairs\nof subtrees", color=BLUE, va="center")
    axes.text(n - 0.6, level - 1.5, "down: what\nis before;\ndotted: pairs\nof the way up",
              color=ORANGE, va="center")
    axes.text(n - 0.6, level - 4.0, "and the step\nitself", color=GREEN, va="center")
    while distance > 1:
        level -= 1
        distance //= 2
        for node in range(2 * distance - 1, n, 2 * distance):
            axes.plot([node, node - distance], [level + 1, level], color=ORANGE, linewidth=1.6)
            axes.plot([node, node], [level + 1, level], color=ORANGE, linewidth=1.6)
            axes.plot([node - distance, node], [level + 1, level], color=BLUE, linewidth=1.2,
                      linestyle=":")  # the pair of the left subtree, made on the way up
            axes.plot([node - distance, node], [level] * 2, "o", color=ORANGE, markersize=9)
    level -= 1
    for node in range(n):
        axes.plot([node, node], [level + 1, level], color=GREEN, linewidth=1.6)
        axes.plot(node, level, "o", color=GREEN, markersize=9)
    axes.set(title=f"Blelloch's scan of {n} steps: 7 rounds", xlim=(-0.5, n + 1.6),
             ylim=(level - 0.4, 0.4), xticks=range(n), yticks=[], xlabel="step")
    axes.set_xticklabels(range(1, n + 1))
    axes.spines["left"].set_visible(False)


if __name__ == "__main__":
    launch(main, OPTIONS, ranks=4)
