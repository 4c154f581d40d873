"""Convolution: its Function, and conv1d and conv2d with PyTorch's arguments.

The plain form: minidl/plain/convolution.py. The arrays decide which file computes:

    arrays of CuPy    kernels/conv.cu and conv_weight.cu, by conv_kernel.py
    arrays of NumPy   kernels/cpu/conv.cu and conv_winograd.cu, by conv_cpu.py
    other cases       im2col and BLAS, by conv_columns.py (for float64, for two different dtypes, or
                      without a compiler)

All three files have the same four functions. forward computes the result. by_input, by_weight and
by_bias compute the gradients of the input, the weight and the bias. A transposed convolution
(extra/conv_transpose.py) uses by_input for its forward, and forward for its backward. conv1d is
conv2d on images of height 1.
Test: tests/ops/test_conv.py
"""

import numpy as np

from minidl.cuda.dispatch import pick
from minidl.cuda.launch import contiguous, scratch
from minidl.function import Function
from minidl.ops import conv_columns, conv_cpu, conv_kernel
from minidl.ops.matmul import same_dtype
from minidl.ops.patches import output_size, pair
from minidl.ops.shape import unsqueeze


class Conv2d(Function):
    """y[n, o] = sum_c w[o, c] (*) x[n, c] + b[o], where (*) is a cross-correlation. Saves x and
    w."""

    precision = "white"

    def forward(self, x, w, b, stride, padding, dilation, groups):
        same_dtype("conv", x, w, "input", "weight")  # checked after the casts of autocast
        self.options = stride, padding, dilation, groups
        self.shapes = x.shape, w.shape
        self.save(x, w)
        self.has_bias = b is not None
        self.out = tuple(output_size(size + sum(p), k, s, d) for size, p, k, s, d in zip(
            x.shape[2:], padding, w.shape[2:], stride, dilation, strict=True))
        return by(x, w, b).forward(x, w, b, self.options, self.out)

    def backward(self, gy):
        x, w = self.saved
        gy = scratch(contiguous(self.xp, gy), of=gy)  # copied once for all three gradients
        run = by(gy, w, x)
        gx = run.by_input(gy, w, x.shape, self.options) if self.needs[0] else None
        gw = run.by_weight(gy, x, w, self.options) if self.needs[1] else None
        return gx, gw, run.by_bias(gy) if self.needs[2] else None


def by(x, w, *others):
    """Returns conv_kernel, conv_cpu or conv_columns: the module that computes a convolution of
    these arrays. x: the images, or the gradient of y. w: the weight."""
    if not isinstance(x, np.ndarray):
        return pick(conv_kernel, conv_columns, x, w, *others)
    return pick(conv_cpu, conv_columns, x, w, *others) if conv_cpu.fits(w) else conv_columns


def conv2d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of images (N, C, H, W) or (C, H, W) with weight (O, C / groups, kh, kw).
    Returns (N, O, H', W') or (O, H', W').

    padding: the number of zeros on each side, an int or (height, width). "valid" means 0. "same" is
        allowed only with stride 1. The result then has the size of the image. If "same" needs an
        odd number of zeros, the end gets one zero more than the beginning."""
    return _convolve("conv2d", input, weight, bias, stride, padding, dilation, groups, 2)


def conv1d(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """Cross-correlation of sequences (N, C, L) or (C, L) with weight (O, C / groups, k). Returns
    (N, O, L') or (O, L'). padding: as in conv2d."""
    return _convolve("conv1d", input, weight, bias, stride, padding, dilation, groups, 1)


def _convolve(op, x, w, b, stride, padding, dilation, groups, n_dims):
    """Checks the arguments, brings x to (N, C, H, W), convolves, and removes the dimensions that it
    added. For conv1d the height is 1."""
    height = (1,) * (2 - n_dims)
    stride = height + pair(stride, op, "stride", n_dims)
    dilation = height + pair(dilation, op, "dilation", n_dims)
    given = f"{op}: input {tuple(x.shape)}, weight {tuple(w.shape)}, groups {groups}"
    dims = "H, W" if n_dims == 2 else "L"
    if len(w.shape) != n_dims + 2 or len(x.shape) not in (n_dims + 1, n_dims + 2):
        raise ValueError(f"{given}; want an input of shape (N, C, {dims}) or (C, {dims}), and a "
                         f"weight of shape (O, C / groups, {'kh, kw' if n_dims == 2 else 'k'}). C "
                         "is the number of input channels, and O the number of output channels")
    if groups < 1 or w.shape[0] % groups or w.shape[1] * groups != x.shape[-n_dims - 1]:
        raise ValueError(f"{given}; want {w.shape[1] * groups} input channels (weight.shape[1] * "
                         "groups). The number of output channels must be divisible by the number "
                         f"of groups, {groups}")
    if b is not None and tuple(b.shape) != (w.shape[0],):
        raise ValueError(f"{op}: bias must have the shape ({w.shape[0]},), one number for each "
                         f"output channel; got {tuple(b.shape)}")
    if min(stride) < 1 or min(dilation) < 1:
        raise ValueError(f"{op}: stride {stride} and dilation {dilation} must be at least 1")
    batched = len(x.shape) == n_dims + 2
    x = x if batched else unsqueeze(x, 0)
    if n_dims == 1:
        x, w = unsqueeze(x, 2), unsqueeze(w, 2)
    padding = resolve_padding(op, padding, w.shape[2:], stride, dilation, n_dims)
    for size, p, k, s, d in zip(x.shape[2:], padding, w.shape[2:], stride, dilation, strict=True):
        if output_size(size + sum(p), k, s, d) < 1:
            raise ValueError(f"{given}; a kernel of size {k} with dilation {d} does not fit into "
                             f"an input of size {size} with {sum(p)} zeros of padding")
    y = Conv2d.apply(x, w, b, stride=stride, padding=padding, dilation=dilation, groups=groups)
    y = y.squeeze(2) if n_dims == 1 else y
    return y if batched else y.squeeze(0)


def resolve_padding(op, padding, kernel, stride, dilation, n_dims):
    """Returns the padding as ((top, bottom), (left, right)). padding: an int, a tuple, "valid" or
    "same". Raises ValueError for any other padding."""
    if padding == "same":
        if max(stride) > 1:
            raise ValueError(f"{op}: padding='same' wants stride 1, got {stride[-n_dims:]}")
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple((t // 2, t - t // 2) for t in total)
    if padding == "valid":
        padding = 0
    if isinstance(padding, str):
        raise ValueError(f"{op}: padding must be an int, a tuple, 'same' or 'valid'; got "
                         f"{padding!r}")
    sizes = (0,) * (2 - n_dims) + pair(padding, op, "padding", n_dims)
    if min(sizes) < 0:
        raise ValueError(f"{op}: padding must not be negative, got {padding}")
    return tuple((p, p) for p in sizes)
