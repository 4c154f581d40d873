"""Other places: views where PyTorch has views, borders by hand, wrong arguments."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F

X = minidl.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])


def test_roll_without_dims_goes_over_the_rows_ends():
    assert X.roll(1).tolist() == [[5, 0, 1], [2, 3, 4]]
    assert X.roll((1, 1), (0, 1)).tolist() == [[5, 3, 4], [2, 0, 1]]
    assert minidl.tensor(3.0).roll(1, 0).item() == 3


def test_diagonal_and_meshgrid_are_views():
    assert np.shares_memory(X.diagonal(1).numpy(), X.numpy()) and X.diagonal(1).tolist() == [1, 5]
    a, b = minidl.meshgrid(X[0], X[1], indexing="ij")
    assert np.shares_memory(a.numpy(), X.numpy()) and a.shape == b.shape == (3, 3)


def test_repeats_per_element():
    counts = minidl.tensor([2, 0, 1])
    assert X.repeat_interleave(counts, 1).tolist() == [[0, 0, 2], [3, 3, 5]]
    assert minidl.repeat_interleave(counts).tolist() == [0, 0, 2]


@pytest.mark.parametrize("mode, pad, wanted", [
    ("reflect", (2, 1), [2, 1, 0, 1, 2, 1]), ("replicate", (2, 1), [0, 0, 0, 1, 2, 2]),
    ("circular", (2, 1), [1, 2, 0, 1, 2, 0]), ("circular", (-1, 2), [1, 2, 1, 2]),
    ("replicate", (-1, 1), [1, 2, 2])])
def test_borders_by_hand(mode, pad, wanted):
    assert F.pad(X[:1], pad, mode=mode).tolist() == [wanted]


@pytest.mark.parametrize("call, message", [
    (lambda: X.roll((1, 2), 0), "2 shifts for 1 dims"),
    (lambda: X.repeat_interleave(minidl.tensor([1, 2]), 1), r"integers of shape \(3,\)"),
    (lambda: minidl.meshgrid(X, X[0]), "wants vectors"),
    (lambda: minidl.meshgrid(X[0], indexing="yx"), "indexing 'ij' or 'xy'"),
    (lambda: F.pad(X, (3, 0), mode="reflect"), r"at most 2 around 3 elements"),
    (lambda: F.pad(X, (4, 0), mode="circular"), "wants borders of at most 3"),
    (lambda: F.pad(X, (2, -3), mode="circular"), "a result that is not empty"),
    (lambda: F.pad(X, (1, 1, 1, 1), mode="reflect"), "of the last one, two or three"),
])
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
