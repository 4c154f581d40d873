"""The largest and the smallest: ties, indices, nan."""

import numpy as np
import pytest

import minidl


def leaf(values):
    return minidl.tensor(values, dtype=np.float64, requires_grad=True)


def test_max_and_amax_share_among_equals_and_max_along_a_dim_does_not():
    # PyTorch 2.13's convention, compared with it in test_every_op.py (rows with TIES)
    values = [[1.0, 3.0, 3.0], [3.0, 0.0, 3.0]]
    x = leaf(values)
    x.max().backward()
    assert np.array_equal(x.grad, [[0, 0.25, 0.25], [0.25, 0, 0.25]])
    x = leaf(values)
    x.amax(1).sum().backward()
    assert np.array_equal(x.grad, [[0, 0.5, 0.5], [0.5, 0, 0.5]])
    x = leaf(values)
    best = x.max(1)
    best.values.sum().backward()
    assert best.indices.tolist() == [1, 0] and best.indices.dtype == np.int64
    assert np.array_equal(x.grad, [[0, 1, 0], [1, 0, 0]])


def test_argmax_takes_the_first_of_equals():
    x = minidl.tensor([[1, 3, 3], [3, 0, 3]])
    assert x.argmax().item() == 1 and x.argmax(1).tolist() == [1, 0]
    assert x.argmin(dim=-1, keepdim=True).tolist() == [[0], [1]]
    assert x.argmax(keepdim=True).shape == (1, 1)


def test_nan_wins():
    x = minidl.tensor([1.0, np.nan, 3.0])
    assert np.isnan(x.max().item()) and np.isnan(x.min(0).values.item())
    assert x.argmax().item() == 1


@pytest.mark.parametrize("op", ["max", "min", "amax", "amin"])
@pytest.mark.parametrize("x, wanted", [([1, np.nan, 3], [0, 1, 0]),
                                       ([np.nan, 2, np.nan, 2], [0.5, 0, 0.5, 0])])
def test_the_gradient_goes_to_a_nan_as_the_result_is_one(op, x, wanted):
    leaf = minidl.tensor(x, dtype=np.float32, requires_grad=True)
    y = getattr(leaf, op)()
    y.backward()
    assert np.isnan(y.item()) and leaf.grad.array.tolist() == wanted
