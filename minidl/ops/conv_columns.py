"""Convolution as a matrix product: copy the patches into columns (im2col), then multiply.

The plain form: minidl/plain/convolution.py, by_columns. This file adds strides, padding, dilation
and groups, and makes columns for only a few samples at a time. The tests compare the kernels with
this file. This file also runs where the kernels cannot run: for float64, for two different dtypes,
and on a machine without a compiler.

    y  = w (O, C kh kw) @ columns, already in the order (O, oh, ow)        gw = gy @ columns^T
    g_columns = w^T @ gy, and gx adds every column back to the patch it came from (col2im)

The patches are a view of x: `as_strided` gives this view the strides of (sample, channel, kernel
row, kernel column, output row, output column). Only the columns are a copy. The columns of a sample
have about kh * kw times as many elements as the sample. So columns are made for a few samples at a
time, and fit in the cache. The columns are not saved: backward makes them again. The memory ledger
counts the columns as workspace (`scratch`), and minidl/memory/workspace.py has the formula. For G
groups the product is a batch of G products, (O/G, C/G kh kw) @ (C/G kh kw, oh ow).

The functions take the same arguments as the functions of conv_cpu.py and conv_kernel.py. `options`
is a tuple (stride, padding, dilation, groups), and padding is ((top, bottom), (left, right)).
Source: Chellapilla, Puri, Simard 2006.      Test: tests/ops/test_conv.py
"""

import math

import numpy as np

from minidl import backend
from minidl.backend import accumulate_dtype
from minidl.cuda.launch import scratch
from minidl.ops.matmul import product
from minidl.ops.patches import crop_image, pad_image, patches, places

CPU_COLUMNS = 2**18  # the most elements of a block: 1 MiB of float32, the size of an L2 cache
GPU_COLUMNS = 2**26  # 256 MiB: enough for large launches, and a limit for large batches


def forward(x, w, b, options, out):
    """Returns y (N, O, *out). x (N, C, H, W), w (O, C / groups, kh, kw), b (O,) or None."""
    xp, groups = backend.xp_of([x]), options[3]
    y = xp.empty((x.shape[0], groups, w.shape[0] // groups, math.prod(out)), x.dtype)
    scratch(y, "temporary")
    for at in _samples(xp, x.shape, w, out):
        columns = _columns(xp, x[at], w, options, out)
        y[at] = multiply(xp, _matrix(w, groups), columns)
        del columns  # freed before the next block is made
    return _with_bias(y.reshape(x.shape[0], w.shape[0], *out), b)


def by_input(gy, w, x_shape, options, b=None):
    """Returns gx, of shape x_shape. gy (N, O, oh, ow). b: None, or the bias (C,) that a transposed
    convolution adds to the result."""
    xp, groups, out = backend.xp_of([gy]), options[3], gy.shape[2:]
    gx = scratch(xp.empty(x_shape, gy.dtype), "temporary")
    gy = gy.reshape(gy.shape[0], groups, w.shape[0] // groups, math.prod(out))
    for at in _samples(xp, x_shape, w, out):
        g = multiply(xp, _matrix(w, groups).swapaxes(-1, -2), gy[at])
        gx[at] = _add_patches(xp, g, x_shape, w, options, out)
        del g
    return _with_bias(gx, b)


def by_weight(gy, x, w, options):
    """Returns gw, of w's shape. gy (N, O, oh, ow), x (N, C, H, W)."""
    xp, groups, out = backend.xp_of([gy]), options[3], gy.shape[2:]
    gw = scratch(xp.zeros(_matrix(w, groups).shape, accumulate_dtype(w.dtype)), "temporary")
    gy = gy.reshape(gy.shape[0], groups, w.shape[0] // groups, math.prod(out))
    for at in _samples(xp, x.shape, w, out):
        columns = _columns(xp, x[at], w, options, out)
        each = multiply(xp, gy[at], columns.swapaxes(-1, -2))
        gw += scratch(each.sum(axis=0, dtype=gw.dtype))
        del columns, each
    return gw.reshape(w.shape)


def by_bias(gy):
    """Returns gb (O,): the sum of gy over images and places."""
    return gy.sum(axis=(0, 2, 3), dtype=accumulate_dtype(gy.dtype))


def _with_bias(y, b):
    if b is not None:
        y += b[:, None, None]
    return y


def _matrix(w, groups):
    """Returns the weight as (groups, O / groups, C / groups * kh * kw)."""
    return w.reshape(groups, w.shape[0] // groups, math.prod(w.shape[1:]))


def _columns(xp, x, w, options, out):
    """Returns the columns of x: (samples, groups, C / groups * kh * kw, oh * ow). out: (oh, ow),
    the size of the result. `out` cannot be computed from x, because in a transposed convolution the
    kernel may fit into the padded image at more than oh * ow places."""
    stride, padding, dilation, groups = options
    padded = pad_image(xp, x, padding)
    padded = padded if padded is x else scratch(padded)
    view = patches(xp, padded, w.shape[2:], stride, dilation)[:, :, :out[0], :out[1]]
    return scratch(view.transpose(0, 1, 4, 5, 2, 3).reshape(
        x.shape[0], groups, math.prod(w.shape[1:]), math.prod(out)))


def _samples(xp, x_shape, w, out):
    """Returns slices of the batch. The columns of each slice are small enough for the cache."""
    step = samples_at_once(x_shape[1], w.shape, out, xp is np)
    return [slice(i, i + step) for i in range(0, x_shape[0], step)]


def samples_at_once(channels, w_shape, out, on_cpu):
    """Returns how many samples are computed at a time, at least 1. A sample needs memory for its
    columns and for a copy of the weight. The samples that are computed at a time need at
    most CPU_COLUMNS elements together (GPU_COLUMNS on a GPU)."""
    one = channels * math.prod(w_shape[2:]) * math.prod(out) + math.prod(w_shape)
    return max(1, (CPU_COLUMNS if on_cpu else GPU_COLUMNS) // max(one, 1))


def _add_patches(xp, g, x_shape, w, options, out):
    """Makes images of zeros. Then adds each column of g to the patch of the image to which the
    column belongs (col2im). g: (samples, groups, C / groups * kh * kw, oh * ow). Returns the images
    (samples, C, H, W)."""
    stride, padding, dilation, _ = options
    g = g.reshape(len(g), x_shape[1], *w.shape[2:], *out)
    size = [d + sum(p) for d, p in zip(x_shape[2:], padding, strict=True)]
    gx = scratch(xp.zeros((len(g), x_shape[1], *size), g.dtype))
    for i, j, at in places(w.shape[2:], stride, dilation, out):
        gx[at] += g[:, :, i, j]
    return crop_image(gx, padding)


def multiply(xp, a, b):
    """Does the same as `product` in matmul.py. The memory ledger also counts the result and the
    casts."""
    if xp is not np or a.dtype != np.float16:
        return scratch(product(xp, a, b))
    a, b = scratch(a.astype(np.float32)), scratch(b.astype(np.float32))
    y = scratch(product(xp, a, b))
    with np.errstate(over="ignore"):  # gives inf without a warning, as `product` does
        return scratch(y.astype(np.float16))
