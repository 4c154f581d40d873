"""Collectives take Tensors and return Tensors. What a graph would not see is refused."""

import numpy as np
import pytest

import minidl
from minidl.comm import objects, ring, ring_blocks, simulate, tree
from minidl.comm.all_to_all import all_to_all
from tests.conftest import ranks


@pytest.mark.parametrize("wait", [True, False])
@ranks(1, 2, 3, 4)
def test_a_sum_is_written_into_the_tensor_and_comes_back_as_it(t, wait):
    x = minidl.tensor(np.arange(5.0) + t.rank)
    total = ring.all_reduce(t, x, wait=wait)
    total = total if wait else total.wait()
    assert total is x and x.version == 1
    assert np.array_equal(x.array, np.arange(5.0) * t.size + sum(range(t.size)))


@ranks(1, 2, 3)
def test_new_arrays_come_back_as_tensors(t):
    x = minidl.tensor(np.arange(t.size) + 10.0 * t.rank)
    y = all_to_all(t, x)
    assert isinstance(y, minidl.Tensor)
    assert np.array_equal(y.array, 10.0 * np.arange(t.size) + t.rank)
    whole, bounds = ring_blocks.all_gather_v(t, x)
    assert isinstance(whole, minidl.Tensor) and whole.shape == (t.size**2,)
    assert bounds[-1] == t.size**2


@ranks(2, 3)
def test_the_gradient_of_a_parameter_is_averaged_where_it_is(t):
    p = minidl.tensor(np.ones(3), requires_grad=True)
    (p * (t.rank + 1)).sum().backward()
    grad = p.grad
    p.grad = ring.all_reduce(t, p.grad) / t.size
    assert np.array_equal(p.grad.array, [(t.size + 1) / 2] * 3)
    assert np.array_equal(grad.array, p.grad.array * t.size)


@ranks(2)
def test_a_value_of_objects_stays_what_it_is(t):
    x = minidl.tensor([1.0, t.rank])
    got = objects.broadcast(t, x)
    assert isinstance(got, minidl.Tensor) and got.array[1] == 0 and x.version == 0


def test_what_a_graph_would_not_see_is_refused():
    def body(t):
        w = minidl.ones(2, requires_grad=True)
        with pytest.raises(RuntimeError, match="tree.broadcast cannot write into a leaf"):
            tree.broadcast(t, w)
        with pytest.raises(RuntimeError, match="rank 0: ring.all_reduce cannot .* of <Mul>"):
            ring.all_reduce(t, w * w)
        with minidl.no_grad():
            assert tree.broadcast(t, w) is w

    simulate(1, body)


def test_a_graph_that_saved_the_tensor_notices_the_sum():
    def body(t):
        w = minidl.ones(2, requires_grad=True)
        x = minidl.ones(2)
        y = (w * x).sum()
        ring.all_reduce(t, x)
        with pytest.raises(RuntimeError, match="changed in place"):
            y.backward()

    simulate(2, body)
