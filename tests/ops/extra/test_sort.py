"""Order: equal elements keep theirs, nan is the largest, wrong ranks are refused."""

import numpy as np
import pytest

import minidl

X = minidl.tensor([2.0, 1.0, 2.0, np.nan, 1.0, np.inf])


def test_equal_elements_keep_their_order_in_both_directions():
    assert X.argsort().tolist() == [1, 4, 0, 2, 5, 3]
    assert X.argsort(descending=True).tolist() == [3, 5, 0, 2, 1, 4]


def test_results_are_named():
    for found in (X.sort(), X.topk(2), X.kthvalue(2), X.median(0)):
        assert found.values is found[0] and found.indices is found[1]
        assert found.indices.dtype == np.int64
    assert X.topk(2).indices.tolist() == [3, 5] and X.kthvalue(3).values.item() == 2


def test_the_median_is_the_lower_one_and_nan_where_there_is_one():
    y = minidl.tensor([[4.0, 1.0, 3.0, 2.0], [1.0, np.nan, 0.0, np.nan]])
    found = y.median(1)
    assert found.values.tolist()[0] == 2 and found.indices.tolist() == [3, 1]
    assert np.isnan(found.values.numpy()[1]) and np.isnan(y.median().item())
    assert np.isnan(minidl.zeros(0).median().item())


def test_wrong_ranks_are_refused():
    with pytest.raises(ValueError, match="topk: wants .* places 0 to 6 .* has the places 0 to 5"):
        X.topk(7)
    with pytest.raises(ValueError, match="kthvalue: wants .* the places -1 to -1"):
        X.kthvalue(0)
    with pytest.raises(IndexError, match="median: dimension 1 of shape .* has no elements"):
        minidl.zeros(2, 0).median(1)
