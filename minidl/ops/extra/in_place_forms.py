"""Ops that write their result into x: x.add_(y), x.clamp_(0, 1), x.scatter_(0, i, y) and others.

    with minidl.no_grad():
        p.mul_(0.9).add_(g, alpha=0.1)        p is the same tensor; its version grows by two

    scores.masked_fill_(mask, -1e9)           the graph records it (`become` in ops/inplace.py)

These ops compute the result in new memory, and then copy it into x. So they make a program shorter,
but not faster. x += y writes into x directly. The dtype of the result must not be of a higher kind
than the dtype of x, as in PyTorch: an integer x cannot take floating numbers.
Test: tests/ops/extra/test_in_place_forms.py
"""

from minidl.mode import no_grad
from minidl.ops import activations, elementwise, index, inplace, logic, reduce, select
from minidl.ops.extra import sampling, scatter, unary
from minidl.random import default_generator

OPS = {  # {file: names of the ops that have an in-place form, such as add_}
    elementwise: "add sub mul div remainder neg pow exp log sqrt rsqrt sin cos abs sign floor ceil "
                 "round",
    select: "clamp masked_fill", activations: "relu sigmoid tanh", reduce: "cumsum",
    index: "tril triu", logic: "logical_and logical_or logical_not floor_divide",
    scatter: "scatter scatter_add index_add index_copy index_fill",
    unary: "erf expm1 exp2 log1p log2 log10 reciprocal square", sampling: "bernoulli",
}


def form(op):
    """Returns the function `op_`. It computes `op`, and writes the result into its first
    argument."""
    name = f"{op.__name__}_"

    def in_place(input, *args, **options):
        if inplace.records(input, *args):
            return inplace.become(input, name, lambda old: op(old, *args, **options))
        with no_grad():
            y = op(input, *args, **options)
        return inplace.copy_(input, inplace.check_fit(y, input, name).to(input.dtype))

    in_place.__name__ = in_place.__qualname__ = name
    in_place.__wrapped__ = op  # so that help() and editors show the arguments of op
    in_place.__doc__ = f"Writes x.{op.__name__}(...) into x. Returns x."
    return in_place


def normal_(input, mean=0.0, std=1.0, *, generator=None):
    """Overwrites the tensor with random numbers from a normal distribution. Returns the tensor."""
    draws = (generator or default_generator()).normal(input.shape, mean=mean, std=std)
    return inplace.copy_(input, input._xp.asarray(draws.astype(input.dtype)))


def uniform_(input, from_=0.0, to=1.0, *, generator=None):
    """Overwrites the tensor with random numbers, uniform in [from_, to). Returns the tensor."""
    draws = (generator or default_generator()).uniform(input.shape, low=from_, high=to)
    return inplace.copy_(input, input._xp.asarray(draws.astype(input.dtype)))


globals().update({f"{name}_": form(getattr(module, name))
                  for module, names in OPS.items() for name in names.split()})
NAMES = " ".join([*(f"{name}_" for names in OPS.values() for name in names.split()),
                  "normal_ uniform_"])
