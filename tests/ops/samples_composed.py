"""Rows of the composed ops, minidl/ops/extra/composed.py, in the form of samples.py."""

import numpy as np

from tests.ops.samples import f, row, torch

_rng = np.random.default_rng(21)  # its own: these rows leave the inputs of others as they are


def n(*shape):
    """Gaussian."""
    return _rng.standard_normal(shape)


EDGES = f(-3, -1, 0, 1, 3, 6)

PRODUCTS = [
    row("mm", lambda m, F, a, b: m.mm(a, b) + a.mm(b), [(n(2, 3), n(3, 4)), (n(2, 0), n(0, 3))]),
    row("mv", lambda m, F, a, b: m.mv(a, b), [(n(2, 3), n(3)), (n(0, 3), n(3))]),
    row("addmm", lambda m, F, c, a, b: m.addmm(c, a, b, beta=0.5, alpha=2) + c.addmm(a, b),
        [(n(2, 4), n(2, 3), n(3, 4)), (n(4), n(2, 3), n(3, 4)), (n(2, 1), n(2, 0), n(0, 3))]),
    row("tensordot", lambda m, F, a, b: m.tensordot(a, b),
        [(n(2, 3, 4), n(3, 4, 5)), (n(3, 4), n(3, 4))]),
    row("tensordot dims", lambda m, F, a, b: m.tensordot(a, b, dims=([0, 2], [1, 0])),
        [(n(2, 3, 4), n(4, 2, 5)), (n(0, 3, 4), n(4, 0, 2))]),
    row("tensordot outer", lambda m, F, a, b: m.tensordot(a, b, 0), [(n(2, 3), n(4)), (n(), n(2))]),
    row("cumprod", lambda m, F, a: m.cumprod(a, 0) + a.cumprod(-1),
        [n(3, 4), f(1, 0, 2, 0, 3, -1).reshape(2, 3), n(0, 3), n(1, 1)]),
    row("cumprod 0-d", lambda m, F, a: a.cumprod(0), [n()]),
]
ELEMENTWISE = [
    row("clip", lambda m, F, a: m.clip(a, -0.5, 0.5) + a.clip(max=1.0), [n(2, 3), n()]),
    row("fmod", lambda m, F, a, b: m.fmod(a, b) + a.fmod(0.7),
        [(n(2, 3), n(2, 3)), (n(3, 1), n(4)), (n(0, 3), n(3))]),
    row("trunc", lambda m, F, a: m.trunc(a * 2) + a.trunc(), [n(2, 3), f(-1.3, -0.4, 0.6, 2.7)],
        [f(np.nan, np.inf, -np.inf, -0.0, 2)]),
    row("lerp", lambda m, F, a, b: m.lerp(a, b, 0.25) + a.lerp(b, 0.75) * 2, [(n(2, 3), n(2, 3))]),
    row("lerp tensor", lambda m, F, a, b, w: m.lerp(a, b, w),
        [(n(2, 3), n(2, 3), f(-1, 0, 0.3, 0.7, 1, 2).reshape(2, 3)), (n(2, 3), n(3), n())]),
    row("nan_to_num", lambda m, F, a: m.nan_to_num(a) + a.nan_to_num(1.0, 2.0, 3.0), [n(2, 3)],
        [f(np.nan, 1, -2), f(np.inf, -np.inf, 0)]),
]
SHAPES = [
    row("concat", lambda m, F, a, b: m.concat([a, b], 1), [(n(2, 3), n(2, 1))]),
    row("hstack", lambda m, F, a, b: m.hstack([a, b]),
        [(n(2, 3), n(2, 1)), (n(3), n(2)), (n(), n())]),
    row("vstack", lambda m, F, a, b: m.vstack((a, b)),
        [(n(2, 3), n(1, 3)), (n(3), n(3)), (n(), n()), (n(2, 3), n(3))]),
    row("flipud", lambda m, F, a: m.flipud(a) + a.flipud() * 2, [n(3, 2), n(4)]),
    row("fliplr", lambda m, F, a: m.fliplr(a) + a.fliplr() * 2, [n(3, 2), n(0, 3)]),
    row("movedim", lambda m, F, a: m.movedim(a, 0, -1), [n(2, 3, 4), n(3)]),
    row("movedim several", lambda m, F, a: a.movedim((0, 3), (2, 0)), [n(2, 3, 4, 5)]),
    row("unflatten", lambda m, F, a: m.unflatten(a, 1, (2, -1)) + a.unflatten(-1, (2, 3)),
        [n(4, 6), n(0, 6)]),
    row("narrow", lambda m, F, a: m.narrow(a, 1, 1, 2) + a.narrow(-1, -2, 2), [n(2, 4), n(0, 3)]),
    row("diff", lambda m, F, a: m.diff(a), [n(2, 4), n(5), n(2, 1)]),
    row("diff twice", lambda m, F, a: a.diff(2, 0), [n(4, 3), n(1, 3)]),
    row("unfold", lambda m, F, a: a.unfold(1, 3, 2), [n(2, 7), n(2, 3), n(2, 8, 2)]),
    row("expand_as", lambda m, F, a, b: a.expand_as(b) * b, [(n(3, 1), n(2, 3, 4))]),
    row("view_as", lambda m, F, a, b: a.view_as(b) * b, [(n(2, 6), n(3, 4))]),
    row("type_as", lambda m, F, a, b: (a > 0).type_as(b) * b, [(n(2, 3), n(2, 3))]),
    row("new_zeros", lambda m, F, a: a.new_zeros(2, 3) + a.new_zeros((2, 3)), [n(2)]),
    row("new_ones", lambda m, F, a: a.new_ones((2, 3)), [n(2)]),
    row("argwhere", lambda m, F, a: m.argwhere(a) + a.argwhere(), [f(3, 1, -1, -2).reshape(2, 2)],
        [f(0, 1, 0, -2).reshape(2, 2)]),
    row("unfold image", lambda m, F, a: F.unfold(a, 2),
        [n(2, 3, 4, 5), n(3, 3, 2), n(0, 1, 2, 2), n(1, 1, 2, 2)]),
    row("unfold image options", lambda m, F, a: F.unfold(a, (2, 3), (2, 1), (0, 2), (1, 2)),
        [n(2, 3, 5, 4)]),
    row("fold", lambda m, F, a: F.fold(a, (3, 4), 2), [n(2, 8, 6), n(4, 6), n(0, 4, 6)]),
    row("fold options", lambda m, F, a: F.fold(a, (5, 4), (2, 3), (2, 1), (0, 2), (1, 2)),
        [n(2, 6, 9)]),
    row("pixel_shuffle", lambda m, F, a: F.pixel_shuffle(a, 2), [n(1, 8, 2, 3), n(4, 3, 1)]),
]
ACTIVATIONS = [
    row("hardtanh", lambda m, F, a: F.hardtanh(a, -0.5, 0.8), [n(2, 3)], [f(-0.5, 0.8, 0)]),
    row("relu6", lambda m, F, a: F.relu6(a * 4), [n(2, 3)], [EDGES / 4]),
    # PyTorch multiplies by a sixth that is rounded to float32, in float64, too: not by its own then
    row("hardsigmoid", lambda m, F, a: F.hardsigmoid(a * 3), [n(2, 3)], [EDGES / 3])._replace(
        torch_fn=lambda a: torch.nn.functional.relu6(a * 3 + 3) / 6),
    row("hardswish", lambda m, F, a: F.hardswish(a * 3), [n(2, 3)], [EDGES / 3]),
    row("softsign", lambda m, F, a: F.softsign(a), [n(2, 3)], [EDGES]),
    row("logsigmoid", lambda m, F, a: F.logsigmoid(a), [n(2, 3), f(-200, 200)]),
    row("celu", lambda m, F, a: F.celu(a) + F.celu(a, 0.5), [n(2, 3), f(-300, 300)]),
    row("softmin", lambda m, F, a: F.softmin(a, 1), [n(2, 3)]),
    row("threshold", lambda m, F, a: F.threshold(a, 0.1, 20.0), [n(2, 3)], [f(0.1, 0.2)]),
]
PLACES = np.array([[0, 1, 1], [2, 1, 2]])  # two meet at the middle of row 1
REDUCED = [row(f"scatter_reduce {kind}", lambda m, F, a, i, b, kind=kind: m.scatter_reduce(
    a, 0, i, b, kind) + 2 * a.scatter_reduce(0, i, b, kind, include_self=False),
    [(n(4, 3), PLACES, n(2, 3))]) for kind in ("sum", "mean", "amax", "amin")]
# none, one and two zeros among the factors that meet
ZEROS = f([[0.0, 2.0, 3.0], [4.0, 0.0, 5.0], [0.0, 6.0, 7.0], [8.0, 9.0, 0.0]])[0]
REDUCED.append(row("scatter_reduce prod of zeros", lambda m, F, a, i, b: a.scatter_reduce(
    0, i, b, "prod"), [(ZEROS, PLACES, f([[2.0, 0.0, 3.0], [0.0, 4.0, 0.0]])[0])]))
LOSSES = [
    row("triplet_margin_loss", lambda m, F, a, b, c: F.triplet_margin_loss(a, b, c),
        [(n(4, 3), n(4, 3), n(4, 3))]),
    row("triplet_margin_loss options", lambda m, F, a, b, c: F.triplet_margin_loss(
        a, b, c, margin=0.5, p=1.5, swap=True, reduction="sum"), [(n(4, 3), n(4, 3), n(4, 3))]),
    row("scaled_dot_product_attention gqa", lambda m, F, q, k, v: F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True), [(n(2, 4, 3, 5), n(2, 2, 3, 5), n(2, 2, 3, 4))]),
]
MORE = [
    row("scatter_reduce prod", lambda m, F, a, i, b: m.scatter_reduce(
        a, 0, i, b, "prod") + 2 * a.scatter_reduce(0, i, b, "prod", include_self=False),
        [(n(4, 3), PLACES, n(2, 3))]),
    row("diff between others", lambda m, F, a, b: a.diff(prepend=b, append=b),
        [(n(2, 4), n(2, 1))]),
    row("softmin dtype", lambda m, F, a: F.softmin(a, 0, dtype=m.float64), [n(2, 3)]),
]
ROWS = [*MORE, *REDUCED, *LOSSES, *PRODUCTS, *ELEMENTWISE, *SHAPES, *ACTIVATIONS]
