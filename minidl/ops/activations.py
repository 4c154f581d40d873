"""Activations: elementwise functions between the layers of a network.

Several activations save the slope dy/dx, which forward computes together with y. The slope has
the same number of bytes as x. Backward is then one product, gy times the slope. SiLU saves x, and
computes the slope in backward. GELU is in gelu.py.
A slope that can have other values than 0 and 1 is computed by arithmetic. The function `where`
is slow: if the signs of x are random, `where` takes as long as twenty additions. A slope that
is 0 or 1 uses `select` (masks.py).

Source: SiLU, Elfwing et al. 2018; ELU, Clevert et al. 2016.
Kernel: kernels/relu.cu   Test: tests/ops/test_activations.py, test_relu_kernel.py
"""

import numpy as np

from minidl import backend
from minidl.cuda.dispatch import pick
from minidl.cuda.launch import contiguous, elementwise, in_packs
from minidl.function import Function
from minidl.ops.gelu import in_blocks
from minidl.ops.masks import select

FILE = "relu.cu"


class Tanh(Function):
    """y = tanh(x). Saves y: dy/dx = 1 - y * y."""

    promotes = "float"

    def forward(self, x):
        y = self.xp.tanh(x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return gy * (1 - y * y)


class Sigmoid(Function):
    """y = 1 / (1 + e^-x). Saves y: dy/dx = y * (1 - y)."""

    promotes = "float"

    def forward(self, x):
        y = logistic(self.xp, x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return gy * (y * (1 - y))


class Relu(Function):
    """max(x, 0), with slope 0 at 0. Saves y, which the next layer saves anyway."""

    def forward(self, x):
        y = pick(relu_by_kernel, relu_by_numpy, x)(x)
        self.save(y)
        return y

    def backward(self, gy):
        (y,) = self.saved
        return pick(relu_by_kernel_backward, relu_by_numpy_backward, gy, y)(gy, y)


def relu_by_numpy(x):
    return backend.xp_of([x]).maximum(x, 0)


def relu_by_numpy_backward(gy, y):
    return select(gy, y > 0)


def relu_by_kernel(x):
    return launch("relu", x)


def relu_by_kernel_backward(gy, y):
    return launch("relu_backward", gy, y)


def launch(name, *arrays):
    """Runs the kernel `name` of relu.cu on arrays of one shape and dtype. Returns the result, a new
    array. A thread computes one element on a CPU, and 16 bytes of the result on a GPU."""
    xp = np if type(arrays[0]) is np.ndarray else backend.xp_of(arrays)
    arrays = [contiguous(xp, a) for a in arrays]
    out = xp.empty(arrays[0].shape, arrays[0].dtype)
    if xp is np:
        elementwise(FILE, name, out.dtype, out.size, (out, *arrays, out.size))
    else:
        in_packs(FILE, f"{name}_packs", out.dtype, (out, *arrays))
    return out


class LeakyRelu(Function):
    """x where x is positive, else negative_slope * x."""

    promotes = "float"

    def forward(self, x, negative_slope):
        self.save(x)
        self.negative_slope = negative_slope
        return self.xp.maximum(x, 0) + negative_slope * self.xp.minimum(x, 0)

    def backward(self, gy):
        (x,) = self.saved
        slope = (x > 0) * x.dtype.type(1 - self.negative_slope)
        slope += x.dtype.type(self.negative_slope)
        return gy * slope


class Elu(Function):
    """x where x is positive, else alpha * (e^x - 1). Saves the slope."""

    promotes = "float"

    def forward(self, x, alpha):
        xp = self.xp
        bend = alpha * xp.expm1(xp.minimum(x, 0))
        self.save((x > 0) * x.dtype.type(1 - alpha) + (bend + alpha))
        return xp.maximum(x, 0) + bend

    def backward(self, gy):
        (slope,) = self.saved
        return gy * slope


class Softplus(Function):
    """log(1 + e^(beta x)) / beta, a smooth ReLU. Where beta * x > threshold, the result is x. Saves
    the slope."""

    precision = "black"
    promotes = "float"

    def forward(self, x, beta, threshold):
        scaled = x * beta
        linear = scaled > threshold
        slope = logistic(self.xp, scaled)
        slope[linear] = 1
        self.save(slope)
        return self.xp.where(linear, x, self.xp.logaddexp(scaled, x.dtype.type(0)) / beta)

    def backward(self, gy):
        (slope,) = self.saved
        return gy * slope


class Silu(Function):
    """x * sigmoid(x). Saves x."""

    promotes = "float"

    def forward(self, x):
        self.save(x)
        return in_blocks(silu_or_slope, x)

    def backward(self, gy):
        (x,) = self.saved
        return in_blocks(silu_or_slope, x, gy)


def logistic(xp, x):
    """Returns 1 / (1 + e^-x), a new array. If e^-x becomes inf, the result is 0, which is
    correct."""
    with np.errstate(over="ignore"):
        y = xp.asarray(-x)  # -x is a scalar if x is 0-d, but out= needs an array
        xp.exp(y, out=y)
        y += 1
        return xp.reciprocal(y, out=y)


def silu_or_slope(xp, x, wants_slope):
    """Returns y = x s, where s = sigmoid(x). If wants_slope is True, returns dy/dx = s + y (1 - s)
    instead."""
    s = logistic(xp, x)
    y = x * s
    return s + y * (1 - s) if wants_slope else y


def tanh(input):
    return Tanh.apply(input)


def sigmoid(input):
    return Sigmoid.apply(input)


def relu(input):
    return Relu.apply(input)


def leaky_relu(input, negative_slope=0.01):
    return LeakyRelu.apply(input, negative_slope=float(negative_slope))


def elu(input, alpha=1.0):
    return Elu.apply(input, alpha=float(alpha))


def softplus(input, beta=1.0, threshold=20.0):
    return Softplus.apply(input, beta=float(beta), threshold=float(threshold))


def silu(input):
    return Silu.apply(input)
