"""Pooling: one number for each window of an image.

    max_pool2d            the largest element of each window. Only this element gets a gradient. If
                          several elements are equal, it is the first one.
    avg_pool2d            the mean of each window
    adaptive_max_pool2d   the largest element of each part, if an image is divided into N parts
    adaptive_avg_pool2d   the mean of each of these N parts

Take element (i, j) of every window. Together these elements are one shifted image. A window of kh x
kw elements gives kh * kw shifted images. NumPy's form is a loop over the shifts, and each step
works on a whole array (`patches.places` gives the shifted slices). Backward is the same loop, and
adds to the slices.
Test: tests/ops/test_conv.py
"""

import math
from typing import NamedTuple

import numpy as np

from minidl import backend
from minidl.cuda import rows as row_kernels
from minidl.cuda.dispatch import on_cpu, pick
from minidl.cuda.launch import BLOCK, LARGEST, contiguous, scratch
from minidl.function import Function
from minidl.ops.index import scatter_add
from minidl.ops.masks import select
from minidl.ops.matmul import product
from minidl.ops.patches import crop_image, output_size, pad_image, pair, places
from minidl.ops.shape import unsqueeze
from minidl.saved import note
from minidl.tensor import Tensor

FILE = "pool.cu"


class Window(NamedTuple):
    """The windows of a pooling. kernel, stride, dilation: (height, width) each. padding: ((top,
    bottom), (left, right)), wide enough for the last windows of ceil_mode. out: (oh, ow), the
    number of windows."""

    kernel: tuple
    stride: tuple
    padding: tuple
    dilation: tuple
    out: tuple

    def places(self):
        """Returns the result of patches.places() for these windows on the padded image."""
        return places(self.kernel, self.stride, self.dilation, self.out)

    def index_dtype(self):
        """Returns the dtype for the index of an element in its window. It has one byte if possible:
        a quarter of the memory of a float32 output."""
        return np.dtype(np.uint8 if math.prod(self.kernel) <= 256 else np.int32)


class MaxPool2d(Function):
    """The largest element of each window. Saves the element's index in the window, one small
    integer for each output. If `indices` is True, also returns the element's place in the image. In
    an image of width W, the element in row h and column w has the place h W + w."""

    def forward(self, x, kernel, stride, padding, dilation, ceil_mode, indices=False):
        xp = self.xp
        out, padding = fit(x.shape, kernel, stride, padding, dilation, ceil_mode)
        self.shape, self.window = x.shape, Window(kernel, stride, padding, dilation, out)
        run = pick(max_by_kernel, max_by_numpy, x) if x.size else max_by_numpy
        self.padded_bytes = 0 if run is max_by_kernel else padded_bytes(x, padding)
        y, winner = run(x, self.window)
        self.save(winner)
        if not indices:
            return y
        (top, _), (left, _) = padding
        rows = xp.arange(out[0])[:, None] * stride[0] + winner // kernel[1] * dilation[0] - top
        columns = xp.arange(out[1]) * stride[1] + winner % kernel[1] * dilation[1] - left
        return y, rows * x.shape[3] + columns

    def backward(self, gy, *_):
        (winner,) = self.saved
        run = pick(max_by_kernel_backward, max_by_numpy_backward, gy)
        return (run if gy.size else max_by_numpy_backward)(gy, winner, self.shape, self.window)


class AvgPool2d(Function):
    """The mean of each window. Keeps only the divisors, (oh, ow).

    divisor: a number, or None. If None, the divisor of a window is the number of its elements that
    count. Elements of the image always count. Elements of the padding count if count_include_pad is
    True. Elements that ceil_mode adds never count."""

    def forward(self, x, kernel, stride, padding, ceil_mode, count_include_pad, divisor):
        xp, work = self.xp, backend.accumulate_dtype(x.dtype)
        out, wider = fit(x.shape, kernel, stride, padding, (1, 1), ceil_mode)
        self.shape, self.window = x.shape, Window(kernel, stride, wider, (1, 1), out)
        if divisor is None:
            counted = pad_image(xp, xp.ones(x.shape[2:], work), padding, int(count_include_pad))
            beyond = tuple((0, w[1] - p[1]) for w, p in zip(wider, padding, strict=True))
            counted = pad_image(xp, counted, beyond)
            divisor = sum(counted[at] for _, _, at in self.window.places())
        self.divisor = xp.ascontiguousarray(xp.broadcast_to(xp.asarray(divisor, work), out))
        run = pick(avg_by_kernel, avg_by_numpy, x) if x.size else avg_by_numpy
        self.padded_bytes = 0 if run is avg_by_kernel else padded_bytes(x, wider)
        return run(x, self.divisor, self.window)

    def backward(self, gy):
        run = pick(avg_by_kernel_backward, avg_by_numpy_backward, gy)
        return (run if gy.size else avg_by_numpy_backward)(
            gy, self.divisor, self.shape, self.window)


def padded_bytes(x, padding):
    """Returns the number of bytes of the padded copy of x that NumPy's forms make. Returns 0 if
    there is no padding."""
    size = [d + sum(p) for d, p in zip(x.shape[2:], padding, strict=True)]
    return math.prod(x.shape[:2]) * math.prod(size) * x.itemsize if any(map(any, padding)) else 0


def padded_for(xp, x, window, value=0):
    """Returns x with its padding. If this is a copy, the memory ledger counts it."""
    padded = pad_image(xp, x, window.padding, value)
    return padded if padded is x else scratch(padded)


def zeros_padded(xp, shape, window, dtype):
    """Returns an array of zeros with the shape of the padded images. A gradient is added to it."""
    size = [d + sum(p) for d, p in zip(shape[2:], window.padding, strict=True)]
    return xp.zeros((*shape[:2], *size), dtype)


def first_inside(xp, window):
    """Returns an array (oh, ow): for each window, the index of its first element that is not
    padding. If all elements of a window are -inf, this element counts as the largest one."""
    rows, columns = (
        xp.clip(-((xp.arange(n) * s - before) // d), 0, k - 1)
        for n, s, (before, _), d, k in zip(window.out, window.stride, window.padding,
                                           window.dilation, window.kernel, strict=True))
    return (rows[:, None] * window.kernel[1] + columns).astype(window.index_dtype())


def max_by_numpy(x, window):
    """Returns (y, winner): the largest element of each window, and its index in the window. Element
    (i, j) of a window of width kw has the index i kw + j."""
    xp = backend.xp_of([x])
    least = -math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = padded_for(xp, x, window, least)
    y = xp.full((*x.shape[:2], *window.out), least, x.dtype)
    winner = xp.empty(y.shape, window.index_dtype())
    winner[...] = first_inside(xp, window)
    for i, j, at in window.places():
        x_ij = padded[at]
        better = x_ij > y  # not >=, so that the first of equal elements wins
        better |= x_ij != x_ij  # nan counts as the largest, as in PyTorch
        xp.copyto(y, x_ij, where=better)
        xp.copyto(winner, winner.dtype.type(i * window.kernel[1] + j), where=better)
    return y, winner


def max_by_numpy_backward(gy, winner, shape, window):
    xp = backend.xp_of([gy])
    gx = zeros_padded(xp, shape, window, gy.dtype)
    for i, j, at in window.places():
        gx[at] += select(gy, winner == i * window.kernel[1] + j)
    return crop_image(gx, window.padding)


def avg_by_numpy(x, divisor, window):
    xp = backend.xp_of([x])
    padded = padded_for(xp, x, window)
    y = xp.zeros((*x.shape[:2], *window.out), divisor.dtype)
    for _, _, at in window.places():
        y += padded[at]
    y /= divisor
    return y.astype(x.dtype, copy=False)


def avg_by_numpy_backward(gy, divisor, shape, window):
    xp = backend.xp_of([gy])
    gy = gy.astype(divisor.dtype, copy=False) / divisor
    gx = zeros_padded(xp, shape, window, gy.dtype)
    for _, _, at in window.places():
        gx[at] += gy
    return crop_image(gx, window.padding)


def max_by_kernel(x, window, rung=None, **form):
    """Does the same as max_by_numpy. rung: "cpu", or 1 for the kernel of a GPU. form: the keyword
    arguments `form` and `order`, which are passed to `cuda.kernel`."""
    xp = row_kernels.backend_of(x)
    x = contiguous(xp, x)
    y = xp.empty((*x.shape[:2], *window.out), x.dtype)
    winner = xp.empty(y.shape, window.index_dtype())
    launch("max_pool", (y, winner, x), y, x.shape, window, rung, form)
    return y, winner


def max_by_kernel_backward(gy, winner, shape, window, rung=None, **form):
    xp = row_kernels.backend_of(gy)
    gy, gx = contiguous(xp, gy), xp.empty(shape, gy.dtype)
    launch("max_pool_backward", (gx, gy, winner), gx, shape, window, rung, form)
    return gx


def avg_by_kernel(x, divisor, window, rung=None, **form):
    xp = row_kernels.backend_of(x)
    y = xp.empty((*x.shape[:2], *window.out), x.dtype)
    launch("avg_pool", (y, contiguous(xp, x), divisor), y, x.shape, window, rung, form)
    return y


def avg_by_kernel_backward(gy, divisor, shape, window, rung=None, **form):
    xp = row_kernels.backend_of(gy)
    on_host = (rung or best_rung(gy)) == "cpu"
    gy, gx = contiguous(xp, gy), xp.empty(shape, divisor.dtype if on_host else gy.dtype)
    launch("avg_pool_backward", (gx, gy, divisor), gx, shape, window, rung, form)
    return gx


def best_rung(x):
    return "cpu" if type(x) is np.ndarray else 1


def launch(name, arrays, result, shape, window, rung, form):
    """Launches a kernel of pool.cu. On a CPU a thread computes one plane (one channel of one
    image). On a GPU a thread computes one number of the result. shape: the shape of the images."""
    rung, (n, channels, h, w) = rung or best_rung(result), shape
    kernel, stride, ((top, _), (left, _)), dilation, out = window
    sizes = h, w, *out, *kernel, *stride, top, left, *dilation
    if rung != "cpu":
        count, file = result.size, FILE
        if max(count, n * channels * h * w) > LARGEST:
            raise ValueError(f"{name}: on a GPU the input can have at most {LARGEST} elements; got "
                             f"images of shape {shape}. Use a smaller batch")
    else:
        count, file = n * channels, on_cpu(FILE)
    index = "unsigned char" if window.index_dtype() == np.uint8 else "int"
    run = row_kernels.kernel(file, name, arrays[1].dtype if "avg" in name else result.dtype,
                             INDEX=index, **form)
    run(row_kernels.blocks(count, BLOCK), BLOCK, (*arrays, count, *sizes))


class AdaptiveAvgPool2d(Function):
    """y = a x b^T. a is (oh, H). Part i of the height has n places. Row i of a has 1 / n at these
    places, and 0 at all other places. b (ow, W) is the same for the width.

    If there is a single part, y is the mean of the whole image. It is computed as one product with
    all H W numbers of each image. For small images, a x b^T takes three times as long, and
    NumPy's mean takes ten times as long."""

    def forward(self, x, size):
        xp, self.shape, self.whole = self.xp, x.shape, size == (1, 1) and x.size
        if self.whole:
            n = math.prod(x.shape[2:])
            work = backend.accumulate_dtype(x.dtype)
            images = x.reshape(-1, n).astype(work, copy=False)
            y = images @ xp.full(n, 1 / n, work)
            return y.astype(x.dtype, copy=False).reshape(*x.shape[:2], 1, 1)
        self.a, self.b = (averaging(xp, n, parts, x.dtype)
                          for n, parts in zip(x.shape[2:], size, strict=True))
        return product(xp, self.a, product(xp, x, self.b.T))

    def backward(self, gy):
        if self.whole:
            n = math.prod(self.shape[2:])
            return self.xp.repeat(gy.reshape(-1) / gy.dtype.type(n), n).reshape(self.shape)
        return product(self.xp, self.a.T, product(self.xp, gy, self.b))


class AdaptiveMaxPool2d(Function):
    """Returns two arrays: the largest element of each part, and its place in the image. In an image
    of width W, the element in row h and column w has the place h W + w. The parts are as in
    `averaging`."""

    def forward(self, x, size):
        xp, (H, W) = self.xp, x.shape[2:]
        y = xp.empty((*x.shape[:2], *size), x.dtype)
        at = xp.empty(y.shape, np.int64)
        for i, j in np.ndindex(*size):
            top, left = i * H // size[0], j * W // size[1]
            part = x[:, :, top:-(-(i + 1) * H // size[0]), left:-(-(j + 1) * W // size[1])]
            winner = part.reshape(*x.shape[:2], math.prod(part.shape[2:])).argmax(axis=-1)
            at[:, :, i, j] = (winner // part.shape[3] + top) * W + winner % part.shape[3] + left
        images = x.reshape(*x.shape[:2], H * W)
        places = at.reshape(*x.shape[:2], math.prod(size))
        y[...] = xp.take_along_axis(images, places, -1).reshape(y.shape)
        self.shape, self.at = x.shape, at
        return y, at

    def backward(self, gy, _):
        n = math.prod(self.shape[2:])
        images = self.xp.arange(math.prod(self.shape[:2])).reshape(*self.shape[:2], 1, 1)
        places = (images * n + self.at).reshape(-1)
        return scatter_add(self.xp, (math.prod(self.shape),), places, gy.reshape(-1)).reshape(
            self.shape)


def averaging(xp, n, parts, dtype):
    """Returns a matrix (parts, n). Row i times a vector (n,) is the mean of part i of the vector.
    Part i has the elements from floor(i n / parts) to ceil((i + 1) n / parts) - 1."""
    i, at = xp.arange(parts)[:, None], xp.arange(n)[None, :]
    inside = (at >= i * n // parts) & (at < -(-(i + 1) * n // parts))
    return (inside / inside.sum(axis=1, keepdims=True)).astype(dtype)


def fit(shape, kernel, stride, padding, dilation, ceil_mode):
    """Returns ((oh, ow), padding): the number of windows that fit into padded images of this shape
    (N, C, H, W), and the padding. Raises ValueError if no window fits.

    ceil_mode: if True, and if elements remain after the last window of a dimension, one more window
    is added there. This window must start in the image, or in the padding before the image. The
    padding after the image then becomes wide enough for this window."""
    out, wider = [], []
    for size, k, s, (before, after), d in zip(shape[2:], kernel, stride, padding, dilation):
        n = output_size(size + before + after + (s - 1) * ceil_mode, k, s, d)
        if ceil_mode and (n - 1) * s >= size + before:
            n -= 1
        out.append(n)
        beyond = (n - 1) * s + d * (k - 1) + 1 - (size + before + after)
        wider.append((before, after + max(beyond, 0)))
    if min(out) < 1:
        padded = tuple(size + sum(p) for size, p in zip(shape[2:], padding, strict=True))
        raise ValueError(f"a window of size {kernel} (dilation {dilation}) does not fit into the "
                         f"padded image, which has size {padded}")
    return tuple(out), tuple(wider)


def max_pool2d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
               return_indices=False) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the largest element of each window of (N, C, H, W) or (C, H, W). stride: the default
    is kernel_size. padding: the width of a border of -inf, at most half the kernel. ceil_mode: if
    True, adds a last window that is partly outside of the image (see `fit`). return_indices: if
    True, also returns the place of each largest element. In an image of width W, the element in row
    h and column w has the place h W + w."""
    op = "max_pool2d"
    return _on_batch(op, input, MaxPool2d, "fiu", **_window(op, kernel_size, stride, padding),
                     dilation=pair(dilation, op, "dilation"), ceil_mode=bool(ceil_mode),
                     indices=return_indices)


def max_pool1d(input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
               return_indices=False) -> Tensor | tuple[Tensor, Tensor]:
    """Does the same as max_pool2d, for sequences (N, C, L) or (C, L)."""
    kernel, dilation = pair(kernel_size, "max_pool1d", "kernel_size", 1), pair(
        dilation, "max_pool1d", "dilation", 1)
    stride = _stride("max_pool1d", stride, kernel)
    padding = pair(padding, "max_pool1d", "padding", 1)
    y = max_pool2d(unsqueeze(input, -2), (1, *kernel), (1, *stride), (0, *padding), (1, *dilation),
                   ceil_mode, return_indices)
    return tuple(part.squeeze(-2) for part in y) if return_indices else y.squeeze(-2)


def adaptive_max_pool2d(input, output_size,
                        return_indices=False) -> Tensor | tuple[Tensor, Tensor]:
    """Divides the image into parts, as adaptive_avg_pool2d does, and returns the largest element of
    each part. return_indices: if True, also returns the place of each largest element, as in
    max_pool2d."""
    y = _on_batch("adaptive_max_pool2d", input, AdaptiveMaxPool2d,
                  size=_parts(output_size, input.shape))
    return (note(y[0], [y[1]]), y[1]) if return_indices else y[0]


def avg_pool2d(input, kernel_size, stride=None, padding=0, ceil_mode=False,
               count_include_pad=True, divisor_override=None):
    """Returns the mean of each window. count_include_pad: True if the padding counts as zeros,
    False if only elements of the image count. divisor_override: divides the sum by this number
    instead. The other arguments are as in max_pool2d."""
    op = "avg_pool2d"
    if divisor_override == 0:
        raise ValueError(f"{op}: divisor_override must not be 0")
    return _on_batch(op, input, AvgPool2d, **_window(op, kernel_size, stride, padding),
                     ceil_mode=bool(ceil_mode), count_include_pad=count_include_pad,
                     divisor=divisor_override)


def adaptive_avg_pool2d(input, output_size):
    """Divides the image into height x width parts, and returns the mean of each part.

    output_size: (height, width), or one int for both dimensions. If height or width is None, this
    dimension keeps its size. If the size of the image is not a multiple of output_size, some
    neighbouring parts overlap by one element."""
    return _on_batch("adaptive_avg_pool2d", input, AdaptiveAvgPool2d,
                     size=_parts(output_size, input.shape))


def _parts(output_size, shape):
    size = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2
    return tuple(have if want is None else int(want)
                 for want, have in zip(size, shape[-2:], strict=True))


def _window(op, kernel_size, stride, padding):
    kernel = pair(kernel_size, op, "kernel_size")
    stride = _stride(op, stride, kernel)
    padding = pair(padding, op, "padding")
    if min(kernel) < 1 or min(stride) < 1 or any(
            not 0 <= p <= k // 2 for p, k in zip(padding, kernel, strict=True)):
        raise ValueError(f"{op}: kernel_size and stride must be at least 1, and padding must be at "
                         f"most half the kernel; got kernel_size={kernel}, stride={stride}, "
                         f"padding={padding}")
    return {"kernel": kernel, "stride": stride, "padding": tuple((p, p) for p in padding)}


def _stride(op, stride, kernel):
    """Returns the stride, one int for each dimension of the kernel. If stride is None or () (as in
    ONNX), returns the kernel size."""
    if stride is None or isinstance(stride, (tuple, list)) and not stride:
        return kernel
    return pair(stride, op, "stride", len(kernel))


def _on_batch(op, x, function, kinds="f", **options):
    """Applies a Function to x (N, C, H, W). (C, H, W) counts as a batch of one image. kinds: the
    letters of NumPy for the kinds of dtypes that are allowed."""
    if len(x.shape) not in (3, 4) or not (backend.is_floating(x.dtype) or x.dtype.kind in kinds):
        raise ValueError(f"{op}: input must have a floating dtype, and the shape (N, C, H, W) or "
                         f"(C, H, W); got {tuple(x.shape)} of {x.dtype}")
    if len(x.shape) == 3:
        y = function.apply(unsqueeze(x, 0), **options)
        return tuple(part.squeeze(0) for part in y) if isinstance(y, tuple) else y.squeeze(0)
    return function.apply(x, **options)
