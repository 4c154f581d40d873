"""x.add_(y), x.clamp_(0, 1), x.scatter_(0, i, y) ...: an op, its result written over x.

    with minidl.no_grad():
        p.mul_(0.9).add_(g, alpha=0.1)        p is the same tensor, its version two higher

    scores.masked_fill_(mask, -1e9)           recorded (become in ops/inplace.py)

Unlike x += y they make the result first, and copy it: they are for short code, not for speed. The
result's dtype must fit into x's kind, as in PyTorch.
Test: tests/ops/extra/test_in_place_forms.py
"""

from minidl.mode import no_grad
from minidl.ops import activations, elementwise, index, inplace, logic, reduce, select
from minidl.ops.extra import sampling, scatter, unary
from minidl.random import default_generator

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
    name = f"{op.__name__}_"

    def in_place(input, *args, **options):
        if inplace.records(input, *args):
            return inplace.become(input, name, lambda old: op(old, *args, **options))
        with no_grad():
            y = op(input, *args, **options)
        return inplace.copy_(input, inplace.check_fit(y, input, name).to(input.dtype))

    in_place.__name__ = in_place.__qualname__ = name
    in_place.__wrapped__ = op  # help() and editors show its arguments
    in_place.__doc__ = f"x.{op.__name__}(...), written over x."
    return in_place


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
