"""Scatter undoes gather; sums of repeats; what does not fit is refused before anything moves."""

import numpy as np
import pytest

import minidl

X, INDEX = minidl.zeros(2, 3), minidl.tensor([[2, 0], [1, 1]])
ONES = minidl.ones(2, 2)


def test_scatter_writes_where_gather_reads():
    i = minidl.tensor([[2, 0, 1], [1, 2, 0]])
    x = minidl.randn(2, 3)
    assert minidl.zeros(2, 3).scatter(1, i, x.gather(1, i)).tolist() == x.tolist()


def test_repeats_add_up_in_scatter_add_only():
    assert X.scatter_add(1, INDEX, ONES).tolist() == [[1, 0, 1], [0, 2, 0]]
    assert X.scatter(1, INDEX, ONES).tolist() == [[1, 0, 1], [0, 1, 0]]
    assert X.scatter(1, INDEX, 2.0, reduce="add").tolist() == [[2, 0, 2], [0, 4, 0]]
    assert X.tolist() == [[0, 0, 0]] * 2, "the input stays as it was"


def test_fp16_repeats_are_summed_in_fp32():
    # 2048 + 1 is 2048 in fp16, so one by one the ones would be lost
    x = minidl.tensor([2048.0], dtype="f2").index_add(
        0, minidl.zeros(64, dtype=np.int64), minidl.ones(64, dtype="f2"))
    assert x.item() == 2112


def test_whole_slices():
    i, rows = minidl.tensor([1, 1]), minidl.ones(2, 3)
    assert X.index_add(0, i, rows, alpha=3).tolist() == [[0, 0, 0], [6, 6, 6]]
    assert X.index_fill(1, i, 7.0).tolist() == [[0, 7, 0]] * 2
    assert X.index_copy(0, i[:1], rows[:1]).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_masked_select_broadcasts_and_takes_0_d():
    mask = minidl.tensor([True, False, True])
    assert minidl.tensor([[1, 2, 3], [4, 5, 6]]).masked_select(mask).tolist() == [1, 3, 4, 6]
    assert minidl.tensor(5.0).masked_select(minidl.tensor(True)).tolist() == [5]


@pytest.mark.parametrize("call, error, message", [
    (lambda: X.scatter(1, INDEX + 1, ONES), IndexError, "from 0 to 2; got indices from 1 to 3"),
    (lambda: X.scatter_add(0, INDEX - 1, ONES), IndexError, "got indices from -1 to 1"),
    (lambda: X.scatter(1, INDEX.float(), ONES), ValueError, "an integer index of 2 dimensions"),
    (lambda: X.scatter(1, INDEX, ONES[:1]), ValueError, "it must be at most the size of src"),
    (lambda: X.scatter(1, INDEX, ONES.double()), TypeError, "input is float32, .* is float64"),
    (lambda: X.scatter(1, INDEX, 2.0, reduce="multiply"), ValueError, "must be None or 'add'"),
    (lambda: X.index_add(0, INDEX, ONES), ValueError, "index_add: wants a vector of integers"),
    (lambda: X.index_copy(0, INDEX[0], ONES), IndexError, "index_copy: .* got indices from 0 to 2"),
])
def test_wrong_inputs_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
