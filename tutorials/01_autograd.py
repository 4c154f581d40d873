"""01  Backward, and the proof that it is right.     45 minutes, needs: derivatives, NumPy

A backward pass walks the graph of the forward pass in reverse order. Finite differences prove that
its gradients are right.

    python tutorials/01_autograd.py               one process; picture: out/01_autograd.png

A computation y = f_k(... f_2(f_1(x))) is a graph of small functions. Each function knows its own
derivative. The chain rule multiplies these derivatives, from the result back to the inputs. Let g
be d loss / d output:

    multiply   u = x y       gx = g y,  gy = g x
    tanh       v = tanh x    gx = g (1 - v v)
    add        w = x + y     gx = gy = g

If a value is used twice, two gradients come back for this value. They are added:

    loss = x y + tanh x      d loss / dx = y + 1 - tanh(x)^2      d loss / dy = x

Proof: compare with the central difference (f(x + h) - f(x - h)) / 2h. The central difference has
two errors. The first error comes from Taylor's series, and is h^2 |f'''| / 6. The second error
comes from the rounding of f, and is about eps |f| / h, with eps = 2^-52 in float64. The sum of the
two errors is smallest near h = eps^(1/3). The best h also depends a little on the sizes of f and
f'''.

Source: Griewank and Walther, "Evaluating Derivatives", 2008.
The engine itself: minidl/function.py, tensor.py, backward.py.
Exercises: `minidl exercise 01` writes work/01_autograd.py with the marked regions empty;
`minidl check 01` grades it.
"""

import numpy as np

import minidl
from minidl.course.out import BLUE, GREY, ORANGE, PALE_BLUE, PALE_ORANGE, RED, arrow, box, line_at
from minidl.course.tutorial import Table, host, launch, picture, put, say
from minidl.gradcheck import gradcheck


class LogSumExp(minidl.Function):
    """Computes y = log(sum(exp(x))) over the last dimension: (..., n) -> (...). This is a smooth
    form of max."""

    def forward(self, x):
        m = x.max(axis=-1, keepdims=True)  # x - m is at most 0, so exp cannot become inf
        y = np.log(np.exp(x - m).sum(axis=-1)) + m[..., 0]
        self.save(x, y)
        return y

    def backward(self, gy):
        x, y = self.saved  # (..., n), (...)
        # >>> exercise 01a: backward of LogSumExp
        # Return d loss / dx, (..., n), from gy = d loss / dy, (...).
        # First derive dy/dx_i: it is a familiar function of x.
        # Then mind two things. If x is 1000, exp(x) overflows, but exp(x - y) does not. To combine
        # arrays of shapes (..., n) and (...), give the second array a last dimension of 1:
        # y[..., None].
        return gy[..., None] * np.exp(x - y[..., None])
        # <<<


def backward(loss):
    """Returns {leaf: d loss / d leaf}. This is the simplest form of minidl/backward.py."""
    gradient = {loss.grad_fn: np.ones_like(loss.array)}  # {node or leaf: sum of its gradients}
    for node in reversed(nodes_in_order(loss)):  # a node comes after all nodes that use its output
        gxs = node.backward(gradient.pop(node))
        if not isinstance(gxs, tuple):
            gxs = (gxs,)
        for edge, gx in zip(node.edges, gxs, strict=True):
            if edge is not None:
                # `producer` is the function that made this input, or a leaf.
                producer = edge[0] if isinstance(edge, tuple) else edge
                # >>> exercise 01b: where gradients meet
                # gx is d loss / d (this input). Another function may have used the same input, and
                # the gradient from that function may have arrived already. Keep the sum of these
                # gradients in gradient[producer].
                gradient[producer] = gradient.get(producer, 0) + gx
                # <<<
    return gradient


def nodes_in_order(loss):
    """Returns the functions that made `loss`. A function comes after the functions that made its
    inputs."""
    found = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [edge[0] for edge in node.edges if isinstance(edge, tuple)]
    return sorted(found, key=lambda node: node.depth)


def central_difference_errors(dtype, steps, n_points=400):
    """Returns the median error of the central difference, for each step size h in `steps`.

    The median is over n_points random x. The function is sin(x) exp(x) / 2."""
    x = minidl.Generator(3).uniform(n_points, low=0.5, high=2.0, dtype=np.float64).astype(dtype)

    def f(x):
        return np.sin(x) * np.exp(x) / dtype(2)

    exact = (np.sin(x.astype(float)) + np.cos(x.astype(float))) * np.exp(x.astype(float)) / 2
    errors = []
    for h in steps.astype(dtype):
        above = x + h
        below = x - h
        # x + h and x - h are rounded, so their distance is not exactly 2h.
        difference = (f(above) - f(below)) / (above - below)
        errors.append(np.median(np.abs(difference - exact) / np.maximum(np.abs(exact), 1.0)))
    return np.array(errors)


def main(t, args):
    table = Table(t)
    say(t, "1. A graph, walked by hand and by the engine.")
    x = minidl.tensor(put(args, np.array(0.5)), requires_grad=True)
    y = minidl.tensor(put(args, np.array(2.0)), requires_grad=True)
    u = x * y
    v = minidl.tanh(x)
    loss = u + v
    for tensor in (u, v, loss):
        tensor.retain_grad()
    by_hand = backward(loss)
    loss.backward()
    table.row("d loss / dx", float(x.grad), 2 + 1 - np.tanh(0.5) ** 2, "rel<1e-15")
    table.row("d loss / dy", float(y.grad), 0.5, "exact")
    differences = abs(by_hand[x] - x.grad.array) + abs(by_hand[y] - y.grad.array)
    table.row("walk by hand - engine", float(differences), 0.0, "exact")

    say(t, "2. LogSumExp and central differences: every gradient, for a random d loss / dy.")
    generator = minidl.Generator(5)
    inputs = generator.normal(4, 7, dtype=np.float64)  # in CPU memory, where gradcheck works
    error = gradcheck(LogSumExp.apply, inputs)
    table.row("LogSumExp, largest relative error", error, 0.0, "abs<1e-8")
    def uses_x_twice(x):
        return LogSumExp.apply(x) * LogSumExp.apply(minidl.tanh(x))

    twice = gradcheck(uses_x_twice, inputs)
    table.row("x used twice, largest relative error", twice, 0.0, "abs<1e-8")
    large = minidl.tensor(put(args, np.array([1000.0, 0.0])), requires_grad=True)
    LogSumExp.apply(large).backward()
    gradient = str(host(large.grad).tolist())
    table.row("LogSumExp, gradient at x = (1000, 0)", gradient, "[1.0, 0.0]", "exact")

    say(t, "3. How small may h be? The error of the central difference, in two precisions.")
    curves = []
    for dtype in (np.float64, np.float32):
        eps = float(np.finfo(dtype).eps)
        steps = np.geomspace(eps * 8, 0.5, 120)
        errors = central_difference_errors(dtype, steps)
        curves.append((np.dtype(dtype).name, eps, steps, errors))
        smooth = np.convolve(np.log(errors), np.ones(9) / 9, "valid")  # mean of 9 neighbours
        best = float(steps[4 + smooth.argmin()])
        table.row(f"best h, {np.dtype(dtype).name}", best, eps ** (1 / 3), "factor<4")
    named = [(x, "x"), (y, "y"), (u, "u = x y"), (v, "v = tanh x"), (loss, "loss = u + v")]
    picture(t, args, draw, named, curves)
    return table


def draw(plt, named, curves):
    """Draws two plots. Left: the graph, with the value and the gradient of every node. Right: the
    error for each h."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.6), width_ratios=(1.15, 1))
    places = [(0, 1.6), (0, 0), (1.75, 0), (1.75, 1.6), (3.5, 0.8)]
    for (tensor, name), (across, up) in zip(named, places, strict=True):
        text = f"{name}\nvalue {tensor.item():.4f}\ngradient {float(tensor.grad):.4f}"
        box(left, across, up, text, PALE_BLUE if tensor.is_leaf else PALE_ORANGE, "round")
    x, y, _, v, _ = (tensor.item() for tensor, _ in named)
    for a, b, gradient in ((0, 2, y), (1, 2, x), (0, 3, 1 - v * v), (2, 4, 1.0), (3, 4, 1.0)):
        a, b = np.array(places[a]), np.array(places[b])
        dx, dy = b - a
        frame = (b - a) * min(0.6 / dx, 0.32 / max(abs(dy), 0.1))  # from a box's middle to its edge
        arrow(left, a + frame, b - frame, lw=2)
        beside = (a + b) / 2 + (0.32 * np.sign(abs(dy)), -0.17 if dy > 0 else 0.09)
        left.text(*beside, f"{gradient:.4f}", color=RED, fontsize=11, ha="center")
    for word, start, end, height, colour in (("forward", 1.1, 2.6, 2.35, BLUE),
                                             ("backward", 2.6, 1.1, -0.75, RED)):
        arrow(left, (start, height), (end, height), colour, lw=2)
        left.text(1.85, height + 0.07, word, color=colour, ha="center")
    left.set_title("x is used twice: the gradients that come back are added")
    left.set(xlim=(-0.7, 4.2), ylim=(-1.0, 2.6))
    left.axis("off")

    for (name, eps, steps, errors), colour in zip(curves, (BLUE, ORANGE), strict=True):
        best = eps ** (1 / 3)
        right.loglog(steps, errors, ".", color=colour, label=f"{name}: $eps^{{1/3}}$ = {best:.1e}")
        right.loglog(steps, eps / steps, "--", color=colour, linewidth=1)
        right.text(eps * 200, 0.06, "eps / h", color=colour)
        line_at(right, "", x=best, color=colour)
    right.loglog(steps, steps**2 / 6, "--", color=GREY, linewidth=1)
    right.text(6e-5, 1.5e-11, "h² / 6", color=GREY)
    right.set(title="A step can be too large, or too small", ylim=(1e-12, 1))
    right.set(xlabel="step h of the central difference", ylabel="relative error of the derivative")
    right.legend(loc="lower left")
    return figure


if __name__ == "__main__":
    launch(main)
