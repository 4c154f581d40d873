"""The layers that models are made of: linear, embedding, dropout, activations.

Attribute names, shapes, defaults and initial distributions are PyTorch's. So weights can be copied
from PyTorch and to PyTorch. Initial weights are drawn from `generator=`, or from the rank's default
generator. `inplace=` is accepted and printed, and has no effect.
Test: tests/nn/test_layers.py
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from minidl.nn import functional as F
from minidl.nn import init
from minidl.nn.module import Module, Parameter
from minidl.ops.dropout import check_probability
from minidl.ops.extra.composed import unflatten
from minidl.ops.shape import flatten
from minidl.tensor import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from minidl.hints import Array
    from minidl.random import Generator
    from minidl.tensor import Tensor


class Linear(Module):
    """y = x W^T + b.  x (..., in_features) -> y (..., out_features).
    weight: (out_features, in_features). The initial values of weight and bias are uniform in
    +-1/sqrt(in_features)."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *,
                 generator: Generator | None = None):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty_parameter(out_features, in_features)
        self.register_parameter("bias", empty_parameter(out_features) if bias else None)
        init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator)
        if bias:
            bound = 1 / math.sqrt(in_features) if in_features else 0.0
            init.uniform_(self.bias, -bound, bound, generator)

    def forward(self, x: Array) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self):
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}")


class Embedding(Module):
    """Looks up rows of `weight` by integer ids: ids (...,) -> (..., embedding_dim).
    weight: (num_embeddings, embedding_dim). Its initial values are drawn from N(0, 1). The row
    `padding_idx` is zero at first, and receives no gradient."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *,
                 generator: Generator | None = None):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        self.weight = empty_parameter(num_embeddings, embedding_dim)
        init.normal_(self.weight, generator=generator)
        if padding_idx is not None:
            self.weight.array[padding_idx] = 0

    @classmethod
    def from_pretrained(cls, embeddings: Array, freeze: bool = True,
                        padding_idx: int | None = None) -> Embedding:
        """Returns an Embedding with these weights, (num_embeddings, embedding_dim). The weights are
        not copied. freeze: if True, the weights receive no gradient."""
        layer = cls(*embeddings.shape, padding_idx)
        layer.weight = Parameter(embeddings, requires_grad=not freeze)
        return layer

    def forward(self, ids: Array) -> Tensor:
        return F.embedding(ids, self.weight, padding_idx=self.padding_idx)

    def extra_repr(self):
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class EmbeddingBag(Embedding):
    """Returns one row for each bag of ids: the mean, the sum or the maximum of the rows of `weight`
    at these ids. mode: "mean", "sum" or "max". ids: (bags, n), or one vector with the ids of all
    bags, one bag after another. If ids is a vector, offsets[i] is the index at which bag i starts.
    include_last_offset: if True, offsets has one more entry, the end of the last bag."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *, mode: str = "mean",
                 include_last_offset: bool = False, padding_idx: int | None = None,
                 generator: Generator | None = None):
        super().__init__(num_embeddings, embedding_dim, padding_idx, generator=generator)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(self, ids: Array, offsets: Array | None = None,
                per_sample_weights: Array | None = None) -> Tensor:
        return F.embedding_bag(ids, self.weight, offsets, mode=self.mode,
                               per_sample_weights=per_sample_weights,
                               include_last_offset=self.include_last_offset,
                               padding_idx=self.padding_idx)

    def extra_repr(self):
        return f"{super().extra_repr()}, mode={self.mode!r}"


class Dropout(Module):
    """In training, sets each element to zero with probability p, and multiplies all other elements
    by 1 / (1 - p). In evaluation, returns x."""

    # parallel/model/context.py replaces `drop` if a text is divided among ranks.
    drop = staticmethod(F.dropout)

    def __init__(self, p: float = 0.5, inplace: bool = False, *,
                 generator: Generator | None = None):
        super().__init__()
        check_probability(p)
        self.p, self.inplace, self.generator = p, inplace, generator

    def forward(self, x: Array) -> Tensor:
        return self.drop(x, self.p, self.training, generator=self.generator)

    def extra_repr(self):
        return f"p={self.p}, inplace={self.inplace}"


class Dropout2d(Dropout):
    """In training, sets whole channels of (N, C, H, W) to zero with probability p. Multiplies all
    other channels by 1 / (1 - p). In evaluation, returns x."""

    drop = staticmethod(F.dropout2d)


class Flatten(Module):
    """Joins the dimensions start_dim to end_dim into one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1):
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Array) -> Tensor:
        return flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self):
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Splits dimension `dim` into several dimensions, with the sizes unflattened_size."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]):
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, x: Array) -> Tensor:
        return unflatten(wrapped(x), self.dim, self.unflattened_size)

    def extra_repr(self):
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class Identity(Module):
    def forward(self, x: Array) -> Tensor:
        return wrapped(x)


class _Shown(Module):
    """A layer without weights. It keeps the arguments of its constructor as attributes. Its printed
    text has the arguments whose names are in `shown`."""
    shown = ()

    def __init__(self, inplace: bool = False, **arguments: Any):
        super().__init__()
        self.inplace = inplace
        for name, value in arguments.items():
            setattr(self, name, value)

    def extra_repr(self):
        parts = [f"{name}={getattr(self, name)!r}" for name in self.shown]
        return ", ".join([*parts, "inplace=True"] if self.inplace else parts)


class ReLU(_Shown):
    def forward(self, x: Array) -> Tensor:
        return F.relu(x)


class LeakyReLU(_Shown):
    shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False):
        super().__init__(inplace, negative_slope=negative_slope)

    def forward(self, x: Array) -> Tensor:
        return F.leaky_relu(x, self.negative_slope)


class ELU(_Shown):
    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace, alpha=alpha)

    def forward(self, x: Array) -> Tensor:
        return F.elu(x, self.alpha)


class SiLU(_Shown):
    def forward(self, x: Array) -> Tensor:
        return F.silu(x)


class GELU(_Shown):
    """x P(x), where P is the standard normal distribution function. approximate: "none" computes P
    exactly, "tanh" uses the approximation of GPT-2."""

    shown = ("approximate",)

    def __init__(self, approximate: str = "none"):
        super().__init__(approximate=approximate)

    def forward(self, x: Array) -> Tensor:
        return F.gelu(x, approximate=self.approximate)


class SELU(_Shown):
    def forward(self, x: Array) -> Tensor:
        return F.selu(x)


class Mish(_Shown):
    def forward(self, x: Array) -> Tensor:
        return F.mish(x)


class GLU(_Shown):
    """a * sigmoid(b), where a and b are the two halves of x along dim."""

    shown = ("dim",)

    def __init__(self, dim: int = -1):
        super().__init__(dim=dim)

    def forward(self, x: Array) -> Tensor:
        return F.glu(x, self.dim)


class PReLU(Module):
    """x where x is positive, else weight * x. The weight is trained. num_parameters: 1, or the
    number of channels. In the second case each channel has its own weight."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25):
        super().__init__()
        self.num_parameters = num_parameters
        self.weight = Parameter(np.full(num_parameters, init, np.float32))

    def extra_repr(self):
        return f"num_parameters={self.num_parameters}"

    def forward(self, x: Array) -> Tensor:
        return F.prelu(x, self.weight)


class Sigmoid(Module):
    def forward(self, x: Array) -> Tensor:
        return F.sigmoid(x)


class Tanh(Module):
    def forward(self, x: Array) -> Tensor:
        return F.tanh(x)


class Softplus(_Shown):
    shown = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0):
        super().__init__(beta=beta, threshold=threshold)

    def forward(self, x: Array) -> Tensor:
        return F.softplus(x, self.beta, self.threshold)


class ReLU6(_Shown):
    def forward(self, x: Array) -> Tensor:
        return F.relu6(x)


class Hardtanh(_Shown):
    shown = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False):
        super().__init__(inplace, min_val=min_val, max_val=max_val)

    def forward(self, x: Array) -> Tensor:
        return F.hardtanh(x, self.min_val, self.max_val)


class Hardsigmoid(_Shown):
    def forward(self, x: Array) -> Tensor:
        return F.hardsigmoid(x)


class Hardswish(_Shown):
    def forward(self, x: Array) -> Tensor:
        return F.hardswish(x)


class Softsign(Module):
    def forward(self, x: Array) -> Tensor:
        return F.softsign(x)


class LogSigmoid(Module):
    def forward(self, x: Array) -> Tensor:
        return F.logsigmoid(x)


class CELU(_Shown):
    shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False):
        super().__init__(inplace, alpha=alpha)

    def forward(self, x: Array) -> Tensor:
        return F.celu(x, self.alpha)


class Threshold(_Shown):
    """x where x is above the threshold, else value."""

    shown = ("threshold", "value")

    def __init__(self, threshold: float, value: float, inplace: bool = False):
        super().__init__(inplace, threshold=threshold, value=value)

    def forward(self, x: Array) -> Tensor:
        return F.threshold(x, self.threshold, self.value)


class PixelShuffle(_Shown):
    """Turns channels into pixels: (..., c r r, h, w) -> (..., c, h r, w r), where r is
    upscale_factor."""

    shown = ("upscale_factor",)

    def __init__(self, upscale_factor: int):
        super().__init__(upscale_factor=upscale_factor)

    def forward(self, x: Array) -> Tensor:
        return F.pixel_shuffle(x, self.upscale_factor)


class Softmin(_Shown):
    shown = ("dim",)

    def __init__(self, dim: int):
        super().__init__(dim=dim)

    def forward(self, x: Array) -> Tensor:
        return F.softmin(x, self.dim)


class Softmax(_Shown):
    shown = ("dim",)

    def __init__(self, dim: int):
        super().__init__(dim=dim)

    def forward(self, x: Array) -> Tensor:
        return F.softmax(x, self.dim)


class LogSoftmax(Softmax):
    def forward(self, x: Array) -> Tensor:
        return F.log_softmax(x, self.dim)


def empty_parameter(*shape):
    """Returns a float32 Parameter with undefined values. The caller must write its values."""
    return Parameter(np.empty(shape, np.float32))
