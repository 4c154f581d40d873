"""Writes initial values into tensors, in place. Names, formulas and defaults are PyTorch's.

    Kaiming:  std = gain / sqrt(fan)              all layers get equal variances: of activations if
                                                  fan is fan_in, of gradients if fan is fan_out
    Xavier:   std = gain * sqrt(2 / (fan_in + fan_out))     a compromise between the two

A uniform distribution with the same std has bounds +-sqrt(3) std. The functions draw from
`generator`, or from this rank's default generator. So equal seeds give equal weights on all ranks.
Each function returns its tensor.
Sources: Glorot & Bengio 2010; He, Zhang, Ren, Sun 2015 (arXiv 1502.01852).
Test: tests/nn/test_init.py   Tutorial: tutorials/31_optimizers.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from minidl import random

if TYPE_CHECKING:
    from minidl.hints import Number
    from minidl.random import Generator
    from minidl.tensor import Tensor


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0,
             generator: Generator | None = None) -> Tensor:
    generator = generator or random.default_generator()
    return constant_(tensor, generator.uniform(tensor.shape, low=a, high=b))


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0,
            generator: Generator | None = None) -> Tensor:
    generator = generator or random.default_generator()
    return constant_(tensor, generator.normal(tensor.shape, mean=mean, std=std))


def constant_(tensor: Tensor, val: Number) -> Tensor:
    """Writes a number, or an array of the same shape, into the tensor."""
    tensor.array[...] = tensor._xp.asarray(val)
    tensor.version += 1
    return tensor


def zeros_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 1.0)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Returns the gain for the weights of the layer before this nonlinearity. The nonlinearity
    reduces the variance, and the gain restores it. param: the negative slope of leaky_relu. Raises
    ValueError for an unknown name."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    gains = {"linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "sigmoid": 1.0, "tanh": 5 / 3,
             "relu": math.sqrt(2)}
    if nonlinearity not in gains:
        raise ValueError(f"calculate_gain: unknown nonlinearity {nonlinearity!r}, "
                         f"want one of {[*gains, 'leaky_relu']}")
    return gains[nonlinearity]


def fans(tensor: Tensor) -> tuple[int, int]:
    """Returns (fan_in, fan_out) of a weight (out, in, *kernel). fan_in: how many inputs each output
    sums. fan_out: how many outputs use each input."""
    if tensor.ndim < 2:
        raise ValueError(f"fans wants a weight of shape (out, in, ...); got {tuple(tensor.shape)}")
    receptive = math.prod(tensor.shape[2:])
    return tensor.shape[1] * receptive, tensor.shape[0] * receptive


_calculate_fan_in_and_fan_out = fans  # PyTorch's name, which programs use


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in",
                     nonlinearity: str = "leaky_relu",
                     generator: Generator | None = None) -> Tensor:
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in",
                    nonlinearity: str = "leaky_relu", generator: Generator | None = None) -> Tensor:
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0,
                    generator: Generator | None = None) -> Tensor:
    bound = gain * math.sqrt(6 / sum(fans(tensor)))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(fans(tensor))), generator)


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0,
                  b: float = 2.0, generator: Generator | None = None) -> Tensor:
    """Draws from a normal distribution. Values outside of [a, b] are drawn again. Raises ValueError
    if almost no values of the distribution are in [a, b]."""
    if not a - 2 * std <= mean <= b + 2 * std:
        raise ValueError("trunc_normal_ wants a mean that is at most 2 std outside of [a, b]; got "
                         f"mean={mean}, std={std}, [{a}, {b}]. With this mean, almost all values "
                         "are drawn again")
    generator = generator or random.default_generator()
    values = generator.normal(tensor.shape, mean=mean, std=std)
    while (outside := (values < a) | (values > b)).any():
        values[outside] = generator.normal((int(outside.sum()),), mean=mean, std=std)
    return constant_(tensor, values)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Writes a random matrix, multiplied by gain. The rows of this matrix are orthonormal. If it
    has more rows than columns, its columns are orthonormal instead. If the tensor has more than two
    dimensions, all dimensions after the first one count as one dimension.
    Source: Saxe et al. 2013 (arXiv 1312.6120)."""
    if tensor.ndim < 2:
        raise ValueError(f"orthogonal_ wants at least 2 dimensions; got shape "
                         f"{tuple(tensor.shape)}")
    generator = generator or random.default_generator()
    rows, columns = tensor.shape[0], math.prod(tensor.shape[1:])
    q, r = np.linalg.qr(generator.normal((max(rows, columns), min(rows, columns))))
    q = q * np.sign(np.diag(r))  # makes all orthogonal matrices equally likely
    return constant_(tensor, gain * (q.T if rows < columns else q).reshape(tensor.shape))


def _kaiming_std(tensor, a, mode, nonlinearity):
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode must be 'fan_in' or 'fan_out', got {mode!r}")
    fan = fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)
