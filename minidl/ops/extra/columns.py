"""im2col and col2im: unfold turns an image into columns, and fold turns columns into an image.

    image (N, C, H, W)  -- unfold -->  columns (N, C kh kw, L)      L windows, each flattened
                        <--  fold  --  elements that several windows share are summed

fold computes the gradient of unfold, and unfold computes the gradient of fold. A convolution is a
matrix product with such columns (conv_columns.py).
Test: tests/ops/test_every_op.py, the rows of tests/ops/samples_composed.py
"""

import math

from minidl.backend import accumulate_dtype
from minidl.function import Function
from minidl.ops.patches import crop_image, output_size, pad_image, pair, patches, places
from minidl.ops.shape import squeeze, unsqueeze


class Unfold(Function):
    """Turns images into columns, one column for each window. Saves no arrays."""

    def forward(self, x, window):
        self.size, self.window = x.shape[2:], window
        return to_columns(self.xp, x, window)

    def backward(self, gy):
        return to_image(self.xp, gy, self.size, self.window)


class Fold(Function):
    """Turns columns into images: adds each column to its window of the image. Saves no arrays."""

    def forward(self, x, size, window):
        self.window = window
        return to_image(self.xp, x, size, window)

    def backward(self, gy):
        return to_columns(self.xp, gy, self.window)


def to_columns(xp, x, window):
    """Returns the columns of x: (N, C, H, W) -> (N, C kh kw, L). window: (kernel, dilation,
    padding, stride). Each of the four has two ints, (height, width)."""
    kernel, dilation, padding, stride = window
    image = pad_image(xp, x, [(p, p) for p in padding])
    view = patches(xp, image, kernel, stride, dilation).transpose(0, 1, 4, 5, 2, 3)
    return view.reshape(x.shape[0], x.shape[1] * math.prod(kernel), math.prod(view.shape[4:]))


def to_image(xp, columns, size, window):
    """Adds each column to its window of an image of zeros. Returns the images: (N, C kh kw, L) ->
    (N, C, *size). window: as in to_columns."""
    kernel, dilation, padding, stride = window
    wide = [n + 2 * p for n, p in zip(size, padding)]
    out = _counts(size, window)
    n, c = columns.shape[0], columns.shape[1] // math.prod(kernel)
    image = xp.zeros((n, c, *wide), accumulate_dtype(columns.dtype))
    parts = columns.reshape(n, c, *kernel, *out)
    for i, j, at in places(kernel, stride, dilation, out):
        image[at] += parts[:, :, i, j]
    return crop_image(image.astype(columns.dtype, copy=False), [(p, p) for p in padding])


def unfold(input, kernel_size, dilation=1, padding=0, stride=1):
    """Returns the windows of images as columns: (N, C, H, W) -> (N, C kh kw, L), or (C, H, W) ->
    (C kh kw, L)."""
    window = _window("unfold", kernel_size, dilation, padding, stride)
    if input.ndim not in (3, 4) or min(_counts(input.shape[-2:], window)) < 1:
        raise ValueError("unfold: the input must have the shape (N, C, H, W) or (C, H, W), and at "
                         f"least the size of a window; got shape {tuple(input.shape)} and windows "
                         f"of {window[0]}")
    if input.ndim == 3:
        return squeeze(Unfold.apply(unsqueeze(input, 0), window=window), 0)
    return Unfold.apply(input, window=window)


def fold(input, output_size, kernel_size, dilation=1, padding=0, stride=1):
    """Returns images of `output_size` from columns: (N, C kh kw, L) -> (N, C, *output_size), or
    (C kh kw, L) -> (C, *output_size). Elements that belong to the same pixel are summed."""
    window = _window("fold", kernel_size, dilation, padding, stride)
    size = pair(output_size, "fold", "output_size")
    n_windows, n_elements = math.prod(_counts(size, window)), math.prod(window[0])
    if input.ndim not in (2, 3) or input.shape[-1] != n_windows or input.shape[-2] % n_elements:
        raise ValueError(f"fold: the input must have the shape (N, m, {n_windows}) or (m, "
                         f"{n_windows}), and m must be divisible by the number of elements of a "
                         f"window, {n_elements}; got shape {tuple(input.shape)}")
    if input.ndim == 2:
        return squeeze(Fold.apply(unsqueeze(input, 0), size=size, window=window), 0)
    return Fold.apply(input, size=size, window=window)


def _window(op, kernel_size, dilation, padding, stride):
    names = ("kernel_size", "dilation", "padding", "stride")
    values = (kernel_size, dilation, padding, stride)
    return tuple(pair(value, op, name) for name, value in zip(names, values))


def _counts(size, window):
    """Returns how many windows fit along each dimension of the image."""
    kernel, dilation, padding, stride = window
    return [output_size(n + 2 * p, k, s, d) for n, p, k, s, d in zip(
        size, padding, kernel, stride, dilation)]
