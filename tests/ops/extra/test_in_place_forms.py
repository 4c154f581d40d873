"""x.add_(y): the same tensor and memory, one version more; recorded where a graph is recorded."""

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


W = [1.0, -2.0, 3.0]
RECORDED = {  # {name: x.op_(...) of a constant or of a result of w, a leaf; the value is x}
    "a result that is masked": lambda m, w: (w * 2).masked_fill_(m.tensor(W) > 2, 0.0),
    "rows added at places": lambda m, w: m.zeros(4, 3).index_add_(0, m.tensor([1, 1]), w.expand(
        2, 3)),
    "a constant that becomes w": lambda m, w: m.zeros(2, 3).copy_(w * w),
    "a chain": lambda m, w: (w * 2).mul_(w).add_(1.0).exp_(),
    "what was there has no gradient": lambda m, w: (w * 2).zero_().add_(w, alpha=3),
    "a number in each place": lambda m, w: (w * 2).fill_(4.0),
    "w and what it is multiplied by": lambda m, w: m.full((3,), 2.0).mul_(w).mul_(w + 1),
    "another dtype": lambda m, w: (w * 2).to(m.float64).copy_(w).float(),
}


@pytest.mark.parametrize("name", RECORDED)
def test_where_a_graph_is_recorded_it_is_pytorchs_value_and_gradient(name):
    def run(m):
        w = m.tensor(W, requires_grad=True)
        x = RECORDED[name](m, w)
        (x * x).sum().backward()
        return x.tolist(), w.grad.tolist()

    values, gradient = run(minidl)
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    wanted, wanted_gradient = run(torch)
    # some roundings of float32 each
    np.testing.assert_allclose(values, wanted, rtol=1e-6)
    np.testing.assert_allclose(gradient, wanted_gradient, rtol=1e-6)


@pytest.mark.parametrize("spoil", [
    lambda w, x: (x * x, x.mul_(2))[0],  # the product saved what x was
    lambda w, x: (w.exp().mul_(x)),  # exp saved its result
])
def test_what_the_graph_has_saved_is_seen_to_have_changed(spoil):
    w = minidl.tensor(W, requires_grad=True)
    y = spoil(w, w * 2)
    with pytest.raises(RuntimeError, match="changed in place between forward and backward"):
        y.sum().backward()


def test_a_view_is_refused_and_one_from_before_is_of_no_use_afterwards():
    w = minidl.tensor(W, requires_grad=True)
    x = w * 2
    view = x[:2]
    with pytest.raises(RuntimeError, match="mul_ must not change a view"):
        view.mul_(3)
    x.mul_(3)
    assert view.tolist() == [6, -12]
    with pytest.raises(RuntimeError, match="Its gradient would be wrong"):
        view.sum()


def test_the_data_of_a_parameter_is_written():
    w, p = minidl.tensor(W, requires_grad=True), minidl.zeros(3, requires_grad=True)
    p.data.copy_(w)
    p.data.add_(w)
    assert p.tolist() == [2, -4, 6] and p.is_leaf and p.requires_grad


def test_a_parameter_under_no_grad_only():
    p = minidl.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError, match="mul_ must not change a leaf that requires a"):
        p.mul_(2)
    with pytest.raises(RuntimeError, match="copy_ must not change a leaf that requires"):
        p.zero_()
    with minidl.no_grad():
        p.mul_(2).add_(p, alpha=0.5)
    assert p.tolist() == [3, 6] and p.requires_grad and p.is_leaf


@pytest.mark.parametrize("call, message", [
    (lambda: minidl.zeros(2).add_(minidl.zeros(3, 2)), r"and shape \(3, 2\); it cannot"),
    (lambda: minidl.tensor([1, 2]).div_(2), "dtype float32 .* of dtype int64"),
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
