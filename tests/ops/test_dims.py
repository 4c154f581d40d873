"""A `dim` that the input does not have is an IndexError, whatever the op, also on a 0-d tensor."""

import inspect

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F

OTHERWISE = "unsqueeze", "glu"  # one place more; a number has no halves


def ops_of_a_dim():
    """{name: function} of all functions of (input, dim) whose other arguments have defaults."""
    found = {}
    for home in (minidl, F):
        for name, function in vars(home).items():
            if name[0] == "_" or not inspect.isfunction(function):
                continue
            first, *others = [*inspect.signature(function).parameters.values()] or [None]
            wanted = [p.name for p in others if p.default is p.empty
                      and p.kind is p.POSITIONAL_OR_KEYWORD]
            takes_a_dim = first and first.name in ("input", "logits") and any(
                p.name == "dim" for p in others)
            if takes_a_dim and set(wanted) <= {"dim"} and name not in OTHERWISE:
                found[name] = function
    return found


OPS = ops_of_a_dim()


@pytest.mark.parametrize("name", sorted(OPS))
def test_a_dim_out_of_range_is_an_index_error(name):
    for x in (np.float32(3), np.ones(2, "f4"), np.ones((2, 3), "f4")):
        limit = max(np.ndim(x), 1)
        for dim in (limit, limit + 1, -limit - 1):
            with pytest.raises(IndexError):
                OPS[name](minidl.tensor(x), dim=dim)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "argsort", "softmax", "gumbel_softmax"])
def test_a_number_has_dims_0_and_minus_1(name):
    for dim in (0, -1):
        y = OPS[name](minidl.tensor(np.float32(3)), dim=dim)
        assert y.shape == () and y.item() == {"cumsum": 3, "cumprod": 3, "argsort": 0}.get(name, 1)


def test_the_ops_are_found():
    assert {"sum", "cumsum", "cumprod", "argsort", "softmax", "gumbel_softmax"} <= set(OPS)
    assert len(OPS) > 25
