"""Convolution: a small window of weights slides over an image; three ways to compute the result.

x (N, C, H, W) are N images of C channels. w (O, C, kh, kw) has a window for each of O output
channels. A window has kh rows and kw columns. The result y (N, O, oh, ow) has one number for each
place where the window fits:

    y[n, o, r, s] = sum over c, i, j of  w[o, c, i, j] * x[n, c, r + i, s + j]

    image    window     result            oh = H - kh + 1,  ow = W - kw + 1
    1 2 3               at each place
    4 5 6     1 0       a sum of products:
    7 8 9     0 1       1 + 5   2 + 6
                        4 + 8   5 + 9

    loops       the formula as it is written. Python is slow, but every multiplication is visible
    im2col      each patch below the window becomes a column. Then everything is ONE product of
                matrices, which processors do best:  (O, C*kh*kw) @ (C*kh*kw, oh*ow).
                The price: the columns hold kh*kw copies of the image
    implicit    the columns are never stored. For each place (i, j) in the window, its weights
                (O, C) are multiplied by the shifted image (C, oh*ow), and all products are added.
                GPU kernels do this in blocks

The gradients come from the same formula. Let gy be the gradient of the loss with respect to one
number of y. Each product w * x in this number adds gy * x to the gradient of w, and gy * w to the
gradient of x.

Papers: LeCun et al., "Gradient-based learning applied to document recognition", 1998; Chellapilla
et al., "High performance convolutional neural networks for document processing", 2006 (im2col).
This page is the plain version. The real one, minidl/ops/conv.py, adds: strides, padding, dilation
and groups; kernels of the implicit form, for a GPU and for a CPU; and Winograd's form, which needs
16 products instead of 36 for a window of 3 x 3 at 2 x 2 places.
"""

import itertools

import numpy as np


def places(x, w):
    """Returns (oh, ow): how many places the window has in each direction."""
    return x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1


def by_loops(x, w):
    n_out, n_in, kh, kw = w.shape
    oh, ow = places(x, w)
    y = np.zeros((len(x), n_out, oh, ow))
    for n, o, r, s in itertools.product(*map(range, y.shape)):  # all indices of y
        for c, i, j in itertools.product(range(n_in), range(kh), range(kw)):
            y[n, o, r, s] += w[o, c, i, j] * x[n, c, r + i, s + j]
    return y


def by_columns(x, w):
    n_out, n_in, kh, kw = w.shape
    oh, ow = places(x, w)
    columns = np.zeros((len(x), n_in, kh, kw, oh, ow))
    for i, j in itertools.product(range(kh), range(kw)):
        columns[:, :, i, j] = x[:, :, i:i + oh, j:j + ow]
    y = w.reshape(n_out, n_in * kh * kw) @ columns.reshape(len(x), n_in * kh * kw, oh * ow)
    return y.reshape(len(x), n_out, oh, ow)


def implicit(x, w):
    n_out, n_in, kh, kw = w.shape
    oh, ow = places(x, w)
    y = np.zeros((len(x), n_out, oh * ow))
    for i, j in itertools.product(range(kh), range(kw)):
        shifted = x[:, :, i:i + oh, j:j + ow].reshape(len(x), n_in, oh * ow)
        y += w[:, :, i, j] @ shifted  # (O, C) @ each image (C, oh*ow)
    return y.reshape(len(x), n_out, oh, ow)


def gradients(gy, x, w):
    """Returns (gx, gw), the gradients of x and w. gy: the gradient of y. Uses the implicit form."""
    n_out, n_in, kh, kw = w.shape
    oh, ow = places(x, w)
    gy = gy.reshape(len(x), n_out, oh * ow)
    gx, gw = np.zeros(x.shape), np.zeros(w.shape)
    for i, j in itertools.product(range(kh), range(kw)):
        shifted = x[:, :, i:i + oh, j:j + ow].reshape(len(x), n_in, oh * ow)
        gw[:, :, i, j] = (gy @ shifted.transpose(0, 2, 1)).sum(0)
        gx[:, :, i:i + oh, j:j + ow] += (w[:, :, i, j].T @ gy).reshape(len(x), n_in, oh, ow)
    return gx, gw


if __name__ == "__main__":
    x = np.arange(1.0, 10.0).reshape(1, 1, 3, 3)
    w = np.array([[1.0, 0.0], [0.0, 1.0]]).reshape(1, 1, 2, 2)
    for form in by_loops, by_columns, implicit:
        print(form.__name__, form(x, w).ravel())
    gx, gw = gradients(np.ones((1, 1, 2, 2)), x, w)  # the loss is the sum of y
    print("gw", gw.ravel())
    print("gx", *gx[0, 0])
