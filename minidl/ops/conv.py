"""Convolution as a matrix product: lay out the patches as columns (im2col), then multiply.

The plain form: minidl/plain/convolution.py, by_columns. Here: strides, padding, dilation, groups,
and columns that are never all there at once.

    y  = w (O, C kh kw) @ columns, which is (O, oh, ow) already        gw = gy @ columns^T
    g_columns = w^T @ gy, and gx adds every column back to the patch it came from (col2im)

The patches are a view: `as_strided` walks x with the strides of (sample, channel, kernel row,
kernel column, output row, output column), and the copy into columns is the only one. It is kh * kw
times x, so it is made for a few samples at a time, stays in the cache, and is never kept: backward
makes it again. The memory ledger sees it as workspace (`scratch`), and minidl/memory/workspace.py
has the formula. Groups are a batch of products, (O/G, C/G kh kw) @ (C/G kh kw, oh ow).
conv1d is conv2d on images of height 1.
Source: Chellapilla, Puri, Simard 2006.      Test: tests/ops/test_conv.py
"""

import math

import numpy as np

from minidl.backend import accumulate_dtype
from minidl.cuda.launch import scratch
from minidl.function import Function
from minidl.ops.matmul import product, same_dtype
from minidl.ops.shape import unsqueeze

CPU_COLUMNS = 2**18  # elements of a block's columns: 1 MiB of float32, an L2 cache
GPU_COLUMNS = 2**26  # 256 MiB: large launches, and an end to what a batch can take


def pair(value, op, name, n=2):
    """n ints, from n of them or from one for all."""
    several = (value,) * n if isinstance(value, (int, np.integer)) else tuple(value)
    several = several * n if len(several) == 1 else several
    if len(several) != n or not all(isinstance(v, (int, np.integer)) for v in several):
        raise ValueError(f"{op}: {name} is an int{' or two of them' * (n == 2)}, got {value!r}")
    return tuple(int(v) for v in several)


def output_size(size, kernel, stride, dilation):
    """How often a kernel fits along a (padded) dimension; 0 or less if it does not."""
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def patches(xp, x, kernel, stride, dilation):
    """View of x (N, C, H, W) as (N, C, oh, ow, kh, kw): the patch under each output place."""
    n, c, h, w = x.shape
    out = [output_size(*a) for a in zip((h, w), kernel, stride, dilation, strict=True)]
    sn, sc, sh, sw = x.strides
    strides = (sn, sc, sh * stride[0], sw * stride[1], sh * dilation[0], sw * dilation[1])
    return xp.lib.stride_tricks.as_strided(x, (n, c, *out, *kernel), strides)


def places(kernel, stride, dilation, out):
    """For each element of the kernel, the slice of the (padded) image that it touches while the
    kernel visits all (oh, ow) output places."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            yield i, j, (..., *(slice(at * d, at * d + (n - 1) * s + 1, s) for at, d, n, s in
                                zip((i, j), dilation, out, stride, strict=True)))


def pad_image(xp, x, padding, value=0):
    """x with `padding`, ((top, bottom), (left, right)), of `value` around its images."""
    if not any(map(any, padding)):
        return x
    return xp.pad(x, ((0, 0),) * (x.ndim - 2) + tuple(padding), constant_values=value)


def multiply(xp, a, b):
    """`product`, whose result and casts the memory ledger sees."""
    if xp is not np or a.dtype != np.float16:
        return scratch(product(xp, a, b))
    a, b = scratch(a.astype(np.float32)), scratch(b.astype(np.float32))
    y = scratch(product(xp, a, b))
    with np.errstate(over="ignore"):  # inf, as in `product`
        return scratch(y.astype(np.float16))


def crop_image(x, padding):
    """The inverse of pad_image."""
    (top, bottom), (left, right) = padding
    return x[..., top:x.shape[-2] - bottom, left:x.shape[-1] - right]


class Conv2d(Function):
    """y[n, o] = sum_c w[o, c] (*) x[n, c] + b[o], a cross-correlation. Saves x and w."""
    precision = "white"

    def forward(self, x, w, b, stride, padding, dilation, groups):
        same_dtype("conv", x, w, "input", "weight")  # here: autocast has cast them
        self.options = stride, padding, dilation, groups
        self.shapes = x.shape, w.shape
        self.save(x, w)
        self.out = tuple(output_size(size + sum(p), k, s, d) for size, p, k, s, d in zip(
            x.shape[2:], padding, w.shape[2:], stride, dilation, strict=True))
        n_places = math.prod(self.out)
        y = self.xp.empty((x.shape[0], groups, w.shape[0] // groups, n_places), x.dtype)
        scratch(y, "temporary")
        for at in self._samples(x, w):
            columns = self._columns(x[at], w)
            y[at] = multiply(self.xp, self._matrix(w), columns)
            del columns  # before the next ones are made
        y = y.reshape(x.shape[0], w.shape[0], *self.out)
        if b is not None:
            y += b[:, None, None]
        return y

    def _matrix(self, w):
        """(groups, O / groups, C / groups * kh * kw)."""
        groups = self.options[3]
        return w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))

    def _columns(self, x, w):
        """(samples, groups, C / groups * kh * kw, oh * ow)."""
        stride, padding, dilation, groups = self.options
        view = patches(self.xp, self._padded(x), w.shape[2:], stride, dilation)
        return scratch(view.transpose(0, 1, 4, 5, 2, 3).reshape(
            x.shape[0], groups, math.prod(w.shape[1:]), math.prod(self.out)))

    def _padded(self, x):
        padded = pad_image(self.xp, x, self.options[1])
        return padded if padded is x else scratch(padded)

    def _samples(self, x, w):
        """Slices of the batch whose columns, and products with them, stay small."""
        step = samples_at_once(x.shape[1], w.shape, self.out, self.xp is np)
        return [slice(i, i + step) for i in range(0, x.shape[0], step)]

    def backward(self, gy):
        x, w = self.saved
        stride, padding, dilation, groups = self.options
        gb = gy.sum(axis=(0, 2, 3), dtype=accumulate_dtype(gy.dtype)) if self.needs[2] else None
        gw = scratch(self.xp.zeros(self._matrix(w).shape, accumulate_dtype(w.dtype)), "temporary")
        gx = scratch(self.xp.empty(x.shape, x.dtype), "temporary") if self.needs[0] else None
        gy = gy.reshape(x.shape[0], groups, w.shape[0] // groups, math.prod(self.out))
        for at in self._samples(x, w):
            if self.needs[1]:
                columns = self._columns(x[at], w)
                each = multiply(self.xp, gy[at], columns.swapaxes(-1, -2))
                gw += scratch(each.sum(axis=0, dtype=gw.dtype))
                del columns, each
            if self.needs[0]:
                g = multiply(self.xp, self._matrix(w).swapaxes(-1, -2), gy[at])
                gx[at] = self._add_patches(g, x, w)
                del g
        return gx, gw.reshape(w.shape), gb

    def _add_patches(self, g, x, w):
        """col2im: columns (samples, groups, C / groups * kh * kw, oh * ow) summed into images."""
        stride, padding, dilation, _ = self.options
        g = g.reshape(len(g), x.shape[1], *w.shape[2:], *self.out)
        size = [d + sum(p) for d, p in zip(x.shape[2:], padding, strict=True)]
        gx = scratch(self.xp.zeros((len(g), x.shape[1], *size), x.dtype))
        for i, j, at in places(w.shape[2:], stride, dilation, self.out):
            gx[at] += g[:, :, i, j]
        return crop_image(gx, padding)


def samples_at_once(channels, w_shape, out, on_cpu):
    """How many samples' columns fit into a cache, with the weight; at least one's."""
    one = channels * math.prod(w_shape[2:]) * math.prod(out) + math.prod(w_shape)
    return max(1, (CPU_COLUMNS if on_cpu else GPU_COLUMNS) // max(one, 1))


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of images (N, C, H, W) or (C, H, W) with weight (O, C / groups, kh, kw).

    padding: zeros on each side, an int or (height, width); "valid" is 0; "same" keeps the size
    (stride 1), with the odd zero at the end."""
    return _convolve("conv2d", input, weight, bias, stride, padding, dilation, groups, 2)


def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of sequences (N, C, L) or (C, L) with weight (O, C / groups, k)."""
    return _convolve("conv1d", input, weight, bias, stride, padding, dilation, groups, 1)


def _convolve(op, x, w, b, stride, padding, dilation, groups, n_dims):
    """Check, bring to (N, C, H, W), convolve, and undo what was added. conv1d has height 1."""
    height = (1,) * (2 - n_dims)
    stride = height + pair(stride, op, "stride", n_dims)
    dilation = height + pair(dilation, op, "dilation", n_dims)
    given = f"{op}: input {tuple(x.shape)}, weight {tuple(w.shape)}, groups {groups}"
    dims = "H, W" if n_dims == 2 else "L"
    if len(w.shape) != n_dims + 2 or len(x.shape) not in (n_dims + 1, n_dims + 2):
        raise ValueError(f"{given}; want (N, C, {dims}) or (C, {dims}), and (O, C / groups, "
                         f"{'kh, kw' if n_dims == 2 else 'k'})")
    if groups < 1 or w.shape[0] % groups or w.shape[1] * groups != x.shape[-n_dims - 1]:
        raise ValueError(f"{given}; want as many input channels as weight.shape[1] * groups, "
                         f"{w.shape[1]} * {groups}, and output channels divisible by groups")
    if b is not None and tuple(b.shape) != (w.shape[0],):
        raise ValueError(f"{op}: bias {tuple(b.shape)}, want ({w.shape[0]},), one a channel")
    if min(stride) < 1 or min(dilation) < 1:
        raise ValueError(f"{op}: stride {stride} and dilation {dilation} must be at least 1")
    batched = len(x.shape) == n_dims + 2
    x = x if batched else unsqueeze(x, 0)
    if n_dims == 1:
        x, w = unsqueeze(x, 2), unsqueeze(w, 2)
    padding = resolve_padding(op, padding, w.shape[2:], stride, dilation, n_dims)
    for size, p, k, s, d in zip(x.shape[2:], padding, w.shape[2:], stride, dilation, strict=True):
        if output_size(size + sum(p), k, s, d) < 1:
            raise ValueError(f"{given}; a kernel of {k} with dilation {d} does not fit into "
                             f"{size} + {sum(p)} of padding")
    y = Conv2d.apply(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups)
    y = y.squeeze(2) if n_dims == 1 else y
    return y if batched else y.squeeze(0)


def resolve_padding(op, padding, kernel, stride, dilation, n_dims):
    """((top, bottom), (left, right)) of an int, a tuple, "valid" or "same"."""
    if padding == "same":
        if max(stride) > 1:
            raise ValueError(f"{op}: padding='same' wants stride 1, got {stride[-n_dims:]}")
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((t // 2, t - t // 2) for t in total)
    if padding == "valid":
        padding = 0
    if isinstance(padding, str):
        raise ValueError(f"{op}: padding is an int, a tuple, 'same' or 'valid', got {padding!r}")
    sizes = (0,) * (2 - n_dims) + pair(padding, op, "padding", n_dims)
    if min(sizes) < 0:
        raise ValueError(f"{op}: padding must not be negative, got {padding}")
    return tuple((p, p) for p in sizes)
