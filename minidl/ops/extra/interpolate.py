"""Resizes images, sequences and volumes.

Each dimension is resized separately: y = a x b^T. The matrix a (n_out, n_in) resizes the height,
and the matrix b resizes the width. Row i of a matrix computes output place i, and has one weight
for each input place. All weights are 0, except for these input places:

    nearest   one place, floor(i n_in / n_out)
    area      all places that output place i covers, with equal weights: their mean
    bilinear  the two places around the position of output place i
    bicubic   the four places around the position, with the weights of a cubic polynomial

Output place i is at the position (i + 1/2) n_in / n_out - 1/2 of the input. With align_corners the
position is i (n_in - 1) / (n_out - 1). So the first places of input and output coincide, and so do
the last places. Backward is the product with a^T and b.
Source: Keys 1981 (the cubic, here with a = -3/4).
Test: tests/ops/test_every_op.py (rows in samples_extra.py)
"""

import math

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.ops.extra.rearrange import TakePlaces
from minidl.ops.matmul import product
from minidl.ops.pool import averaging

LINEAR = {"linear": 3, "bilinear": 4, "trilinear": 5}  # mode: number of dimensions of the input


class Resize(Function):
    """x (N, C, ...), multiplied by matrices[d] (out, in) along dimension d + 2, for each d."""
    op = "interpolate"

    def forward(self, x, matrices):
        if x.dtype.kind != "f":
            raise TypeError(f"interpolate: this mode wants a floating input; got {x.dtype}. Call "
                            ".float() first, or use the mode 'nearest' or 'nearest-exact'")
        self.dtype, wide = x.dtype, backend.accumulate_dtype(x.dtype)
        self.matrices = [self.xp.asarray(a.astype(wide)) for a in matrices]
        return self._applied(x, [a.T for a in self.matrices])

    def backward(self, gy):
        return self._applied(gy, self.matrices)

    def _applied(self, x, transposed):
        y = x.astype(transposed[0].dtype, copy=False)
        for d, a in enumerate(transposed):  # (..., in) @ (in, out)
            y = self.xp.moveaxis(product(self.xp, self.xp.moveaxis(y, d + 2, -1), a), -1, d + 2)
        return y.astype(self.dtype, copy=False)


def positions(n, n_out, scale, align_corners):
    """Returns the positions of the n_out output places in the input, (n_out,). The input has n
    places. scale: n / n_out, or 1 / scale_factor. With align_corners, scale is not used."""
    i = np.arange(n_out)
    if align_corners:
        return i * ((n - 1) / (n_out - 1) if n_out > 1 else 0.0)
    return (i + 0.5) * scale - 0.5


def linear_weights(n, n_out, scale, align_corners):
    """Returns a matrix (n_out, n). Row i belongs to output place i. Output place i has a position
    in the input (`positions`), and row i has the weights of the two input places around this
    position. If the position is outside of the input, only the first or the last input place has a
    weight."""
    at = np.clip(positions(n, n_out, scale, align_corners), 0, None)
    low = np.minimum(np.floor(at).astype(int), n - 1)
    high = np.minimum(low + 1, n - 1)
    part = at - low
    rows = np.zeros((n_out, n))
    np.add.at(rows, (np.arange(n_out), low), 1 - part)
    np.add.at(rows, (np.arange(n_out), high), part)
    return rows


def cubic_weights(n, n_out, scale, align_corners, a=-0.75):
    """Returns a matrix (n_out, n). Row i belongs to output place i. Output place i has a position
    in the input (`positions`), and row i has the weights of the four input places around this
    position. A place outside of the input counts as the first or the last input place."""
    at = positions(n, n_out, scale, align_corners)
    low = np.floor(at).astype(int)
    rows = np.zeros((n_out, n))
    for step in (-1, 0, 1, 2):
        t = np.abs(at - (low + step))
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        place = np.clip(low + step, 0, n - 1)
        np.add.at(rows, (np.arange(n_out), place), np.where(t <= 1, near, far))
    return rows


def interpolate(input, size=None, scale_factor=None, mode="nearest", align_corners=None,
                recompute_scale_factor=None, antialias=False):
    """Resizes all but the first two dimensions of input (N, C, ...).

    size: the new sizes. It is one number for all dimensions, or a tuple with a number for each.
    scale_factor: in place of size. A new size is the old size times this factor, rounded down. It
        is one factor for all dimensions, or a tuple with a factor for each.
    mode: "nearest", "nearest-exact", "area", "linear" for (N, C, L), "bilinear" or "bicubic" for
        (N, C, H, W), "trilinear" for (N, C, D, H, W).
    align_corners: if True, the first places of input and output coincide, and so do the last
        places. It can be used only with the linear modes and bicubic.
    recompute_scale_factor: if True, the positions are computed from the rounded sizes, not from
        scale_factor.
    Raises ValueError if these arguments do not fit together, or do not fit the input."""
    n_dims = input.ndim - 2
    if antialias:
        raise NotImplementedError("interpolate: antialias is not provided; use mode='area' to make "
                                  "an image smaller")
    wanted = {**LINEAR, "bicubic": 4}.get(mode, input.ndim)
    if n_dims not in (1, 2, 3) or wanted != input.ndim:
        raise ValueError("interpolate: mode must be linear for an input (N, C, L), bilinear or "
                         "bicubic for (N, C, H, W), and trilinear for (N, C, D, H, W); got mode "
                         f"{mode!r} and an input of shape {tuple(input.shape)}")
    if (size is None) == (scale_factor is None):
        raise ValueError(f"interpolate: wants either size or scale_factor; got size={size}, "
                         f"scale_factor={scale_factor}")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(f"interpolate: align_corners has no meaning for mode {mode!r}")
    have = input.shape[2:]
    scales = [None] * n_dims
    if size is None:
        scales = _each(scale_factor, n_dims)
        size = [math.floor(n * s) for n, s in zip(have, scales, strict=True)]
        if recompute_scale_factor or mode == "area":
            scales = [None] * n_dims
    size = _each(size, n_dims)
    if min(size) < 1 or min(have) < 1:
        raise ValueError(f"interpolate: all sizes must be 1 or more; got input sizes {tuple(have)} "
                         f"and result sizes {tuple(size)}")
    ratios = [n / m if s is None else 1 / s for n, m, s in zip(have, size, scales, strict=True)]
    each = list(zip(have, size, ratios, strict=True))
    if mode in ("nearest", "nearest-exact"):
        half = 0.5 if mode == "nearest-exact" else 0.0
        return TakePlaces.apply(input, places={
            d: np.minimum(np.floor((np.arange(m, dtype="f4") + np.float32(half)) * np.float32(r)),
                          n - 1).astype(int)  # computed in float32, as in PyTorch
            for d, (n, m, r) in enumerate(each, 2)})
    if mode == "area":
        return Resize.apply(input, matrices=[averaging(np, n, m, "f8") for n, m, _ in each])
    weights = cubic_weights if mode == "bicubic" else linear_weights
    return Resize.apply(input, matrices=[weights(n, m, r, align_corners) for n, m, r in each])


def _each(value, n):
    several = [value] * n if np.isscalar(value) else list(value)
    if len(several) != n:
        raise ValueError(f"interpolate: wants one number, or one number for each of the {n} "
                         f"dimensions that are resized; got {value}")
    return several
