"""Activations that are used less often than the activations in minidl/ops/activations.py.

    mish   x tanh(log(1 + e^x))               selu   scale * elu(x, alpha), with fixed constants
    prelu  x, or w x where x is negative      glu    a sigmoid(b), for the two halves a, b of x

Sources: Mish, Misra 2019; SELU, Klambauer et al. 2017; PReLU, He et al. 2015; GLU, Dauphin et al.
2017.     Test: tests/ops/test_every_op.py (rows in samples_extra.py)
"""

from minidl.function import Function
from minidl.ops.activations import elu, logistic, sigmoid
from minidl.ops.elementwise import mul
from minidl.ops.shape import chunk

# With these constants a layer with independent inputs keeps mean 0 and variance 1.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


class Mish(Function):
    """y = x t, where t = tanh(log(1 + e^x)). Saves dy/dx = t + x (1 - t^2) sigmoid(x)."""
    promotes = "float"

    def forward(self, x):
        t = self.xp.tanh(self.xp.logaddexp(x, x.dtype.type(0)))
        if self.needs[0]:
            self.save(t + x * (1 - t * t) * logistic(self.xp, x))
        return x * t

    def backward(self, gy):
        (slope,) = self.saved
        return gy * slope


class Prelu(Function):
    """x where x is positive, else w x. w has one number for all elements, or one number for each
    channel (dimension 1)."""

    def forward(self, x, w):
        if x.dtype != w.dtype or w.ndim > 1:
            raise ValueError("prelu: input and weight must have the same dtype. The weight must "
                             "have one number, or one number for each channel; got input of "
                             f"{x.dtype}, weight of {w.dtype} and shape {w.shape}")
        self.w_shape = w.shape
        self.per_channel = w.size > 1
        if self.per_channel:
            if x.ndim < 2 or w.shape[0] != x.shape[1]:
                raise ValueError(f"prelu: wants one slope for each channel; got {w.size} slopes "
                                 f"for an input of shape {x.shape}")
            w = w.reshape(-1, *[1] * (x.ndim - 2))
        elif not x.ndim:
            w = w.reshape(())
        self.save(x, w)
        return self.xp.where(x > 0, x, w * x)

    def backward(self, gy):
        x, w = self.saved
        positive = x > 0
        gw = gy * self.xp.where(positive, 0, x) if self.needs[1] else None
        if gw is not None:  # summed over all dimensions except the channels
            others = tuple(i for i in range(x.ndim) if i != 1 or not self.per_channel)
            gw = gw.sum(axis=others).reshape(self.w_shape)
        return gy * self.xp.where(positive, 1, w), gw


def mish(input):
    return Mish.apply(input)


def selu(input):
    """scale * (x where x is positive, else alpha (e^x - 1)), for x = input."""
    return mul(elu(input, SELU_ALPHA), SELU_SCALE)


def prelu(input, weight):
    """x where x is positive, else weight * x, for x = input. weight: (1,) or (channels,)."""
    return Prelu.apply(input, weight)


def glu(input, dim=-1):
    """a * sigmoid(b), where a and b are the two halves of input along `dim`."""
    if input.ndim == 0 or input.shape[dim] % 2:
        raise ValueError(f"glu: wants an even size in dimension {dim}, got shape {input.shape}")
    a, b = chunk(input, 2, dim)
    return mul(a, sigmoid(b))
