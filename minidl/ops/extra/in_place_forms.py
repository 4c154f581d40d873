"""x.add_(y), x.clamp_(0, 1), x.scatter_(0, i, y) ...: an op, its result written over x.

    with minidl.no_grad():
        p.mul_(0.9).add_(g, alpha=0.1)        p is the same tensor, its version two higher

For what a graph records they are refused: a saved array would change behind backward's back. Unlike
x += y they make the result first, and copy it: they are for short code, not for speed. The result's
dtype must fit into x's kind, as in PyTorch.      Test: tests/ops/extra/test_in_place_forms.py
"""

import numpy as np

from minidl import backend
from minidl.mode import is_grad_enabled, no_grad
from minidl.ops import activations, elementwise, index, inplace, logic, reduce, select
from minidl.ops.extra import sampling, scatter, unary
from minidl.random import default_generator
from minidl.tensor import Tensor

OPS = {  # file: the names whose form with _ there is
    elementwise: "add sub mul div remainder neg pow exp log sqrt rsqrt sin cos abs sign floor ceil "
                 "round",
    select: "clamp masked_fill", activations: "relu sigmoid tanh", reduce: "cumsum",
    index: "tril triu", logic: "logical_and logical_or logical_not floor_divide",
    scatter: "scatter scatter_add index_add index_copy index_fill",
    unary: "erf expm1 exp2 log1p log2 log10 reciprocal square", sampling: "bernoulli",
}


def form(op):
    """The function `op_` that writes what `op` gives over its first argument."""
    def in_place(input, *args, **options):
        given = [a for a in (input, *args) if isinstance(a, Tensor)]
        if is_grad_enabled() and any(x.requires_grad for x in given):
            raise RuntimeError(f"{op.__name__}_ of what requires a gradient; do it under `with "
                               f"minidl.no_grad():`, or write x = x.{op.__name__}(...)")
        with no_grad():
            y = op(input, *args, **options)
        if y.shape != input.shape or not _fits(y.dtype, input.dtype):
            raise ValueError(f"{op.__name__}_: the result is {y.dtype} of shape {tuple(y.shape)}, "
                             "it "
                             f"cannot be written into {input.dtype} of shape {tuple(input.shape)}")
        return inplace.copy_(input, y.to(input.dtype))

    in_place.__name__ = in_place.__qualname__ = f"{op.__name__}_"
    in_place.__doc__ = f"x.{op.__name__}(...), written over x; only where no graph is recorded."
    return in_place


def _fits(dtype, into):
    """Whether the dtype is of a kind not above the other's: no floating numbers into integers."""
    return backend.promote_types(dtype, into).kind == np.dtype(into).kind


def normal_(input, mean=0.0, std=1.0, *, generator=None):
    """Overwrite with Gaussian numbers."""
    draws = (generator or default_generator()).normal(input.shape, mean=mean, std=std)
    return inplace.copy_(input, input._xp.asarray(draws.astype(input.dtype)))


def uniform_(input, from_=0.0, to=1.0, *, generator=None):
    """Overwrite with numbers uniform in [from_, to)."""
    draws = (generator or default_generator()).uniform(input.shape, low=from_, high=to)
    return inplace.copy_(input, input._xp.asarray(draws.astype(input.dtype)))


globals().update({f"{name}_": form(getattr(module, name))
                  for module, names in OPS.items() for name in names.split()})
NAMES = " ".join([*(f"{name}_" for names in OPS.values() for name in names.split()),
                  "normal_ uniform_"])
