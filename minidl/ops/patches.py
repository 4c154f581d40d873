"""The places of the windows of a convolution or a pooling on an image.

    image with padding         window 2 x 2, stride 1         output_size: how many windows fit
    . . . . .                  +---+
    . a b c .                  |. .| . .                      (5 - 2) / 1 + 1 = 4 along a row
    . d e f .                  |. a| b c
    . . . . .                  +---+

Test: tests/ops/test_conv.py   Used by: conv.py, conv_columns.py, pool.py, extra/columns.py
"""

import numpy as np


def pair(value, op, name, n=2):
    """Returns a tuple of n ints. value: n ints, or one int for all. Raises ValueError for other
    values."""
    several = (value,) * n if isinstance(value, (int, np.integer)) else tuple(value)
    several = several * n if len(several) == 1 else several
    if len(several) != n or not all(isinstance(v, (int, np.integer)) for v in several):
        raise ValueError(f"{op}: {name} must be an int{' or two ints' * (n == 2)}; got {value!r}")
    return tuple(int(v) for v in several)


def output_size(size, kernel, stride, dilation):
    """Returns the number of places at which a kernel fits along a (padded) dimension. This
    number is 0 or less if the kernel does not fit."""
    return (size - dilation * (kernel - 1) - 1) // stride + 1


def patches(xp, x, kernel, stride, dilation):
    """Returns a view of x (N, C, H, W) as (N, C, oh, ow, kh, kw): a patch for each place of the
    output."""
    n, c, h, w = x.shape
    out = [output_size(*a) for a in zip((h, w), kernel, stride, dilation, strict=True)]
    sn, sc, sh, sw = x.strides
    strides = (sn, sc, sh * stride[0], sw * stride[1], sh * dilation[0], sw * dilation[1])
    return xp.lib.stride_tricks.as_strided(x, (n, c, *out, *kernel), strides)


def places(kernel, stride, dilation, out):
    """Yields (i, j, index) for each element (i, j) of the kernel. image[index], of shape (...,
    oh, ow), has the pixels that this element reads from the (padded) image. There is one pixel for
    each place of the output."""
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            yield i, j, (..., *(slice(at * d, at * d + (n - 1) * s + 1, s) for at, d, n, s in
                                zip((i, j), dilation, out, stride, strict=True)))


def pad_image(xp, x, padding, value=0):
    """Returns x with a border of `value` around its images. padding: the widths of the border,
    ((top, bottom), (left, right)). Returns x itself if all widths are 0."""
    if not any(map(any, padding)):
        return x
    return xp.pad(x, ((0, 0),) * (x.ndim - 2) + tuple(padding), constant_values=value)


def crop_image(x, padding):
    """Returns a view of x without the padding. The inverse of pad_image."""
    (top, bottom), (left, right) = padding
    return x[..., top:x.shape[-2] - bottom, left:x.shape[-1] - right]
