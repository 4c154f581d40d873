"""Quantize: a trained model computes with 8-bit numbers instead of 32-bit numbers.

So the model reads a quarter of the bytes. A whole number q stands for a real number. An input x
also has an offset, `zero`: the q that stands for 0.0. A weight w has no offset:

    w = scale * q              q from -127 to 127    scale = max |w| / 127, one for each output
    x = scale * (q - zero)     q from 0 to 255       scale = (high - low) / 255

low and high are the smallest and the largest x. `zero` is a whole number, so 0.0 is exact. This
helps because many inputs are 0, after a relu or as padding. q = -128 is not used: if q stands for
w, then -q stands for -w. The error of one number is at most half of its scale. Each output
(channel) has its own scale. So small weights are not rounded as coarsely as the large weights of
another output.

Then a product of two matrices needs only whole numbers. For one output:

    sum over k of  x_k w_k  =  scale_x scale_w (sum of q_x q_w  -  zero * sum of q_w)

The first sum adds products of 8-bit numbers in 32 bits, without any rounding. The second sum
corrects for the offset. It depends only on the weights.

Paper: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018. This page is the plain version. The real one,
minidl/infer/quantize.py and minidl/ops/extra/quantize.py, adds: kernels, convolutions, 4 bits,
ranges of the inputs that are chosen before the run, and training that takes the rounding into
account.
"""

import numpy as np


def weights_of(w):
    """Returns (q, scale) of w (outputs, inputs). Each output has its own scale."""
    scale = np.abs(w).max(axis=1, keepdims=True) / 127
    return np.rint(w / scale).astype(np.int8), scale


def scale_of(x):
    """Returns (scale, zero) of x. The range of x is extended to contain 0.0."""
    low, high = min(x.min(), 0), max(x.max(), 0)
    scale = (high - low) / 255
    return scale, int(np.rint(-low / scale))


def in_8_bits(x, scale, zero):
    """Returns the q of each number of x, as uint8. A number outside of the range gets 0 or 255."""
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)


def linear(x, q_w, scale_w):
    """Returns x @ w.T, approximately. x is (samples, inputs); q_w, scale_w = weights_of(w)."""
    scale_x, zero = scale_of(x)
    q_x = in_8_bits(x, scale_x, zero)
    total = q_x.astype(np.int32) @ q_w.T.astype(np.int32)  # the sums need 32 bits
    total -= zero * q_w.sum(axis=1, dtype=np.int32)
    return total.astype(x.dtype) * (scale_x * scale_w[:, 0])


if __name__ == "__main__":
    w = np.array([[127.0, -64.0, 1.0],
                  [1270.0, 0.0, 10.0]])
    x = np.array([[-5.0, 250.0, 100.4]])
    q_w, scale_w = weights_of(w)
    scale_x, zero = scale_of(x)
    print("scales of w", scale_w[:, 0], " q of w", *q_w)
    print("scale of x", scale_x, " zero", zero, " q of x", in_8_bits(x, scale_x, zero))
    print("with 8 bits", linear(x, q_w, scale_w), " exact", (x @ w.T).round(1))
