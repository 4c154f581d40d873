"""Searching and counting: NumPy's results, dtypes as PyTorch's, wrong inputs refused."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F

X = minidl.tensor([[3, 0, 1], [3, 5, 0]])


def test_nonzero_in_both_forms():
    assert X.nonzero().tolist() == [[0, 0], [0, 2], [1, 0], [1, 1]]
    rows, columns = X.nonzero(as_tuple=True)
    assert X[rows, columns].tolist() == [3, 1, 3, 5]
    assert minidl.tensor(2.0).nonzero().shape == (1, 0)
    assert minidl.tensor(2.0).nonzero(as_tuple=True)[0].tolist() == [0]


def test_unique_says_which_and_how_often():
    values, inverse, counts = X.unique(return_inverse=True, return_counts=True)
    assert values.tolist() == [0, 1, 3, 5] and counts.tolist() == [2, 1, 2, 1]
    assert values[inverse].tolist() == X.tolist()
    rows, which = minidl.tensor([[1, 2], [0, 1], [1, 2]]).unique(dim=0, return_inverse=True)
    assert rows.tolist() == [[0, 1], [1, 2]] and which.tolist() == [1, 0, 1]


def test_buckets():
    edges = minidl.tensor([1.0, 3.0, 5.0])
    v = minidl.tensor([0.0, 1.0, 2.0, 5.0, 9.0])
    assert minidl.searchsorted(edges, v).tolist() == [0, 0, 1, 2, 3]
    assert minidl.searchsorted(edges, v, right=True).tolist() == [0, 1, 1, 3, 3]
    assert minidl.bucketize(v, edges, out_int32=True).dtype == np.int32
    assert minidl.searchsorted(edges, 4).item() == 2
    rows = minidl.tensor([[1.0, 2.0], [5.0, 9.0]])
    assert minidl.searchsorted(rows, minidl.tensor([[2.0], [2.0]])).tolist() == [[1], [0]]


def test_counts_and_sums_of_weights():
    i = minidl.tensor([0, 2, 2])
    assert minidl.bincount(i, minlength=5).tolist() == [1, 0, 2, 0, 0]
    sums = i.bincount(minidl.tensor([0.5, 1.0, 2.0]))
    assert sums.tolist() == [0.5, 0, 3] and sums.dtype == np.float32


def test_close():
    a, b = minidl.tensor([1.0, np.nan]), minidl.tensor([1.0 + 5e-6, np.nan])
    assert minidl.isclose(a, b).tolist() == [True, False]
    assert minidl.allclose(a, b, equal_nan=True) is True and not a.allclose(b)


def test_one_hot():
    assert F.one_hot(minidl.tensor([1, 0]), 3).tolist() == [[0, 1, 0], [1, 0, 0]]
    assert F.one_hot(minidl.tensor([[2]])).tolist() == [[[0, 0, 1]]]


@pytest.mark.parametrize("call, error, message", [
    (lambda: F.one_hot(minidl.tensor([1, -1])), IndexError, "classes from -1 to 1"),
    (lambda: F.one_hot(minidl.tensor([3]), 3), IndexError, "classes from 0 to 3|from 3 to 3"),
    (lambda: F.one_hot(minidl.tensor([1.0])), TypeError, "wants integers, got float32"),
    (lambda: F.one_hot(minidl.zeros(0, dtype=np.int64)), ValueError, "cannot be guessed"),
    (lambda: minidl.bincount(X), ValueError, "bincount: wants a vector of integers"),
    (lambda: minidl.searchsorted(minidl.zeros(2, 3), minidl.zeros(3, 1)), ValueError, "sorted row"),
    (lambda: minidl.searchsorted(X[0], X[0], right=True, side="left"), ValueError, "side must be"),
])
def test_wrong_inputs_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
