"""x.add_(y): the same tensor and memory, one version more, refused where a graph is recorded."""

import numpy as np
import pytest

import minidl
from minidl import ops
from minidl.ops.extra import in_place_forms


def test_each_form_writes_what_its_op_gives():
    for module, names in in_place_forms.OPS.items():
        for name in names.split():
            if module is ops.scatter or name in ("masked_fill", "bernoulli", "floor_divide"):
                continue
            x = minidl.tensor([[0.25, 0.5], [0.75, 1.0]])
            args = (0.3,) if name in "add sub mul div remainder pow clamp".split() else ()
            args = (1,) if name == "cumsum" else (x.clone(),) if name in (
                "logical_and", "logical_or") else args
            wanted, memory = getattr(x, name)(*args).to(x.dtype).numpy(), x.array
            got = getattr(x, f"{name}_")(*args)
            assert got is x and x.array is memory and x.version == 1, name
            np.testing.assert_array_equal(x.numpy(), wanted, err_msg=name)


def test_those_with_an_index_or_a_mask():
    x, i = minidl.zeros(3), minidl.tensor([0, 2])
    x.scatter_(0, i, 1.0).index_fill_(0, i[1:], 5).scatter_add_(0, i, minidl.ones(2))
    assert x.tolist() == [2, 0, 6]
    x.masked_fill_(x > 1, -1.0).index_add_(0, i, minidl.ones(2))
    x.index_copy_(0, i[:1], minidl.ones(1))
    assert x.tolist() == [1, 0, 0]


def test_a_parameter_under_no_grad_only():
    p = minidl.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="mul_ of what requires a gradient; do it under"):
        p.mul_(2)
    with pytest.raises(RuntimeError, match="add_ of what requires a gradient"):
        minidl.zeros(2).add_(p)
    with minidl.no_grad():
        p.mul_(2).add_(p, alpha=0.5)
    assert p.tolist() == [3, 6] and p.requires_grad and p.is_leaf


@pytest.mark.parametrize("call, message", [
    (lambda: minidl.zeros(2).add_(minidl.zeros(3, 2)), r"of shape \(3, 2\), it cannot"),
    (lambda: minidl.tensor([1, 2]).div_(2), "is float32 .* into int64"),
])
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_random_fillings():
    x = minidl.zeros(1000).normal_(5.0, 0.1, generator=minidl.Generator(1))
    assert abs(x.mean().item() - 5) < 0.02 and 0.08 < x.std().item() < 0.12
    x.uniform_(-1, 1)
    assert -1 <= x.min().item() < -0.9 and 0.9 < x.max().item() < 1
    assert set(x.bernoulli_(0.5).tolist()) == {0, 1}
