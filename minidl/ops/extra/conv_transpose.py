"""Transposed convolution: its forward is the input gradient of a convolution.

    conv2d            y = w (*) x       (C, H, W) -> (O, H', W')       stride 2 halves the size
    conv_transpose2d  x = w^T (*) y     (O, H', W') -> (C, H, W)       stride 2 doubles the size

Each input element is multiplied by the whole kernel, and the product is added to the output at the
element's place. So the forward is the backward of conv2d (minidl/ops/conv.py), and the backward is
the forward of conv2d.
Source: Zeiler et al. 2010; Dumoulin & Visin 2016.
Test: tests/ops/test_every_op.py (rows in samples_extra.py)
"""

from minidl.cuda.launch import contiguous, scratch
from minidl.function import Function
from minidl.ops.conv import by
from minidl.ops.matmul import same_dtype
from minidl.ops.patches import pair
from minidl.ops.shape import unsqueeze


class ConvTranspose2d(Function):
    """The transposed convolution of x (N, C, H, W) with w (C, O / groups, kh, kw). Saves x and w.
    self.out is the size (H, W) of x. Backward is a convolution, and its result has this size."""

    precision = "white"

    def forward(self, x, w, b, stride, padding, dilation, groups, size):
        same_dtype("conv_transpose", x, w, "input", "weight")
        self.options, self.out = (stride, padding, dilation, groups), x.shape[2:]
        self.save(x, w)
        self.has_bias = b is not None
        y_shape = (x.shape[0], w.shape[1] * groups, *size)
        self.shapes = y_shape, w.shape
        return by(x, w, b).by_input(x, w, y_shape, self.options, b)

    def backward(self, gy):
        x, w = self.saved
        gy = scratch(contiguous(self.xp, gy), of=gy)  # copied once for all three gradients
        run = by(gy, w, x)
        gx = run.forward(gy, w, None, self.options, self.out) if self.needs[0] else None
        gw = run.by_weight(x, gy, w, self.options) if self.needs[1] else None
        return gx, gw, run.by_bias(gy) if self.needs[2] else None


def conv_transpose2d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1,
                     dilation=1):
    """Transposed convolution of images (N, C, H, W) or (C, H, W) with weight (C, O / groups, kh,
    kw). Returns (N, O, H', W') or (O, H', W'), where H' = (H - 1) stride - 2 padding + dilation
    (kh - 1) + output_padding + 1."""
    return _transposed("conv_transpose2d", input, weight, bias, stride, padding, output_padding,
                       groups, dilation, 2)


def conv_transpose1d(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1,
                     dilation=1):
    """Transposed convolution of sequences (N, C, L) or (C, L) with weight (C, O / groups, k).
    Returns (N, O, L') or (O, L')."""
    return _transposed("conv_transpose1d", input, weight, bias, stride, padding, output_padding,
                       groups, dilation, 1)


def _transposed(op, x, w, b, stride, padding, output_padding, groups, dilation, n_dims):
    """Checks the arguments, brings x to (N, C, H, W), convolves, and removes the dimensions that it
    added. For conv_transpose1d the height is 1."""
    height = (1,) * (2 - n_dims)
    none = (0,) * (2 - n_dims)
    stride = height + pair(stride, op, "stride", n_dims)
    dilation = height + pair(dilation, op, "dilation", n_dims)
    padding = none + pair(padding, op, "padding", n_dims)
    more = none + pair(output_padding, op, "output_padding", n_dims)
    given = f"{op}: input {tuple(x.shape)}, weight {tuple(w.shape)}, groups {groups}"
    if len(w.shape) != n_dims + 2 or len(x.shape) not in (n_dims + 1, n_dims + 2):
        raise ValueError(f"{given}; want an input (N, C, ...) or (C, ...), and a weight (C, O / "
                         f"groups, ...) with {n_dims + 2} dimensions. C is the number of input "
                         "channels, and O the number of output channels")
    if groups < 1 or w.shape[0] % groups or w.shape[0] != x.shape[-n_dims - 1]:
        raise ValueError(f"{given}; want {w.shape[0]} input channels (weight.shape[0]). This "
                         f"number must be divisible by the number of groups, {groups}")
    if b is not None and tuple(b.shape) != (w.shape[1] * groups,):
        raise ValueError(f"{op}: bias must have the shape ({w.shape[1] * groups},), one number for "
                         f"each output channel; got {tuple(b.shape)}")
    if any(o >= max(s, d) and o for o, s, d in zip(more, stride, dilation, strict=True)):
        raise ValueError(f"{op}: output_padding {more} must be smaller than stride {stride} or "
                         f"dilation {dilation}")
    batched = len(x.shape) == n_dims + 2
    x = x if batched else unsqueeze(x, 0)
    if n_dims == 1:
        x, w = unsqueeze(x, 2), unsqueeze(w, 2)
    size = tuple((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, s, p, d, k, o in zip(
        x.shape[2:], stride, padding, dilation, w.shape[2:], more, strict=True))
    if min(size) < 1:
        raise ValueError(f"{given}; want a result of size 1 or more, but padding {padding} leaves "
                         f"a size of {size}")
    y = ConvTranspose2d.apply(x, w, b, stride=stride, padding=tuple((p, p) for p in padding),
                              dilation=dilation, groups=groups, size=size)
    y = y.squeeze(2) if n_dims == 1 else y
    return y if batched else y.squeeze(0)
