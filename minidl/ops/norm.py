"""Normalization: subtract the mean, divide by the standard deviation, then scale and shift.

    xhat = (x - mean) * r,   r = 1 / sqrt(var + eps)        y = xhat * w + b
    gx   = r * (g - mean(g) - xhat * mean(g * xhat))        g = gy * w

Four layers use this formula. They differ in which elements share a mean. For x of shape (N, C, H,
W):

    layer_norm   the last dimensions of one sample          N means for (C, H, W)   layer_norm.py
    group_norm   C / G channels of one sample               N * G means
    batch_norm   one channel, over all samples and places   C means                 batch_norm.py
    rms_norm     the same as layer_norm, without the mean: xhat = x / sqrt(mean(x^2) + eps)

Backward subtracts mean(g), because xhat does not change if all x are shifted. It also subtracts the
part of g in the direction of xhat, because xhat does not change if all x are scaled. The statistics
of fp16 are computed in fp32.

Source: Ba, Kiros, Hinton 2016 (layer); Wu & He 2018 (group); Ioffe & Szegedy 2015 (batch); Zhang &
Sennrich 2019 (rms).      Test: tests/ops/test_norm.py
"""

import math

from minidl import backend
from minidl.function import Function


def mean_product(xp, a, b, axes):
    """Returns (a * b).mean(axes, keepdims=True). Makes no array for the product."""
    letters = "abc"[:a.ndim]
    kept = "".join(c for i, c in enumerate(letters) if i not in axes)
    shape = [1 if i in axes else d for i, d in enumerate(a.shape)]
    n = math.prod(a.shape[i] for i in axes)
    return xp.einsum(f"{letters},{letters}->{kept}", a, b).reshape(shape) / a.dtype.type(n)


def standardize(xp, x, axes, eps, centered=True):
    """Returns (xhat, mean, var, r), where xhat = (x - mean) * r and r = 1 / sqrt(var + eps). The
    statistics are over `axes`, in the dtype of the sums. If centered is False, the mean is 0."""
    x = x.astype(backend.accumulate_dtype(x.dtype), copy=False)
    mean = x.mean(axis=axes, keepdims=True) if centered else x.dtype.type(0)
    xhat = x - mean
    var = mean_product(xp, xhat, xhat, axes)
    r = 1 / xp.sqrt(var + x.dtype.type(eps))
    xhat *= r
    return xhat, mean, var, r


def standardize_backward(xp, g, xhat, r, axes, centered=True):
    """Returns gx, the gradient of x. g: the gradient of xhat. The function overwrites g."""
    along = mean_product(xp, g, xhat, axes)
    if centered:
        g -= g.mean(axis=axes, keepdims=True)
    g -= xhat * along
    g *= r
    return g


def scale_shift(xhat, w, b, dtype):
    """Returns xhat * w + b in `dtype`. w and b broadcast, and may be None."""
    y = xhat.copy() if w is None else xhat * w
    if b is not None:
        y += b
    return y.astype(dtype, copy=False)


class GroupNorm(Function):
    """Normalises each of G groups of channels, in each sample: a group has C / G channels and all
    places. Saves xhat as rows (N * G, C / G * places), r and w."""

    precision = "black"

    def forward(self, x, w, b, n_groups, eps):
        n, c = x.shape[:2]
        rows = x.reshape(n * n_groups, math.prod(x.shape[1:]) // n_groups)
        xhat, _, _, r = standardize(self.xp, rows, (1,), eps)
        self.save(xhat, r, w)
        self.view = n, c, math.prod(x.shape[2:])
        y = scale_shift(xhat.reshape(self.view), column(w), column(b), x.dtype)
        return y.reshape(x.shape)

    def backward(self, gy):
        xhat, r, w = self.saved
        g = gy.reshape(self.view).astype(xhat.dtype, copy=False)
        gw = (g * xhat.reshape(self.view)).sum(axis=(0, 2)) if self.needs[1] else None
        gb = g.sum(axis=(0, 2)) if self.needs[2] else None
        g = g.copy() if w is None else g * column(w)
        gx = standardize_backward(self.xp, g.reshape(xhat.shape), xhat, r, (1,))
        return gx.reshape(gy.shape), gw, gb


def column(v):
    """Returns a view of v (C,) that broadcasts to (N, C, places). Returns None if v is None."""
    return None if v is None else v[None, :, None]


def group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    """Normalises each group of channels of each sample to mean 0 and variance 1, then multiplies by
    weight and adds bias. input (N, C, ...); weight and bias (C,), or None."""
    check_channels("group_norm", input, weight=weight, bias=bias)
    if num_groups < 1 or input.shape[1] % num_groups:
        raise ValueError("group_norm: the number of channels must be divisible by the number of "
                         f"groups, {num_groups}; got {input.shape[1]} channels in an input of "
                         f"shape {tuple(input.shape)}")
    return GroupNorm.apply(input, weight, bias, n_groups=num_groups, eps=eps)


def check_channels(op, input, **per_channel):
    _want_floating(op, input)
    if len(input.shape) < 2:
        raise ValueError(f"{op}: input must have the shape (N, C, ...); got {tuple(input.shape)}")
    for name, v in per_channel.items():
        if v is not None and tuple(v.shape) != (input.shape[1],):
            raise ValueError(f"{op}: {name} must have the shape ({input.shape[1]},), one number "
                             f"for each channel of the input {tuple(input.shape)}; got "
                             f"{tuple(v.shape)}")


def _want_floating(op, input):
    if not backend.is_floating(input.dtype):
        raise TypeError(f"{op}: wants floating numbers, got {input.dtype}")
