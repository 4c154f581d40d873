"""Indexing: repeats add up, everything NumPy takes is taken."""

import numpy as np
import pytest

import minidl
from minidl.ops.index import scatter_add


def test_a_repeated_index_adds_its_gradients():
    x = minidl.zeros(4, requires_grad=True)
    x[[3, 1, 3, -1]].backward(np.array([1, 10, 100, 1000], np.float32))
    assert np.array_equal(x.grad, [0, 10, 0, 1101])


def test_repeats_in_pairs_of_index_arrays_add_up():
    x = minidl.zeros(2, 3, requires_grad=True)
    x[minidl.tensor([0, 1, 0]), minidl.tensor([2, 0, 2])].sum().backward()
    assert np.array_equal(x.grad, [[0, 0, 2], [1, 0, 0]])


INDICES = [
    0, -1, slice(None), slice(1, None, 2), slice(None, None, -1), None, ..., (0, 1), (..., 1),
    (slice(None), None, 2), [0, 2], [0, 0, -1], np.array([[0, 1], [2, 2]]), (slice(None), [1, 1]),
    ([0, 1], slice(1), [2, 2]), (0, slice(None), [1, 1]), np.array(1), np.int64(2),
    np.array([True, False, True]), (slice(None), np.array([True] * 3 + [False])),
    np.zeros((3, 4), bool), [], (slice(0, 0),),
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_gradient_is_the_sum_over_places_an_element_went_to(index):
    x = minidl.Tensor(np.arange(60.0).reshape(3, 4, 5), requires_grad=True)
    if isinstance(index, list) and not index:
        index = np.array([], np.int64)
    y = x[index]
    assert np.array_equal(y._data, x._data[index])
    gy = np.random.default_rng(0).standard_normal(y.shape)
    y.backward(gy)
    wanted = np.zeros(60)
    places = np.arange(60).reshape(3, 4, 5)[index]
    for place, g in zip(np.ravel(places), np.ravel(gy)):  # one at a time: nothing to get wrong
        wanted[place] += g
    np.testing.assert_allclose(x.grad, wanted.reshape(3, 4, 5), rtol=1e-12, atol=1e-14)


def test_tensors_as_indices_in_any_place():
    x = minidl.arange(12).reshape(3, 4)
    i = minidl.tensor([2, 0])
    assert x[i].tolist() == [[8, 9, 10, 11], [0, 1, 2, 3]]
    assert x[:, i].tolist() == [[2, 0], [6, 4], [10, 8]]
    assert x[i, i].tolist() == [10, 0]
    assert x[x > 9].tolist() == [10, 11]
    assert x[minidl.tensor(1)].tolist() == [4, 5, 6, 7]


def test_out_of_range_and_wrong_kinds_are_refused_by_name():
    x = minidl.zeros(2, 3)
    for index in (2, (0, 5), [0, 7], (0, 0, 0), 1.5, minidl.ones(2)):
        with pytest.raises(IndexError, match=r"^getitem: .*\(2, 3\)"):
            x[index]
    with pytest.raises(ValueError, match="gather: wants an integer index of 2 dimensions"):
        x.gather(1, minidl.tensor([0]))
    with pytest.raises(ValueError, match="exceeds shape"):
        x.gather(1, minidl.zeros(3, 1, dtype=np.int64))


def test_index_select_refuses_what_torch_refuses():
    x, i = minidl.zeros(2, 3), minidl.tensor([0, 2])
    for wrong, words in [
        ((2, i), "index_select: dim 2 is out of range"),
        ((0, i), r"index_select: indices from 0 to 2, but dimension 0 of shape \(2, 3\) has 0 to"),
        ((1, i - 1), "index_select: indices from -1 to 1"),
    ]:
        with pytest.raises(IndexError, match=words):
            x.index_select(*wrong)
    assert minidl.tensor(1.0).index_select(0, i[:1]).shape == ()  # a vector of one, as in PyTorch
    for y, index in ((x, i[None]), (x, i.float()), (minidl.tensor(1.0), i)):
        with pytest.raises(ValueError, match="index_select: wants .* 1-d integer index; got"):
            y.index_select(0, index)


@pytest.mark.parametrize("rows", [np.array([1, 3, 1, -1]), np.array([[0], [0]]), np.zeros(0, int)])
def test_scatter_add_of_rows(rows):
    g = np.random.default_rng(0).standard_normal((*rows.shape, 5))
    wanted = np.zeros((4, 5))
    np.add.at(wanted, rows, g)
    np.testing.assert_array_equal(scatter_add(np, (4, 5), rows, g), wanted)  # the same order


def test_fp16_gradients_of_repeats_are_summed_in_fp32():
    # 4096 ones: an fp16 running sum stops at 2048
    x = minidl.zeros(2, dtype=np.float16, requires_grad=True)
    x[np.zeros(4096, np.int64)].backward(np.ones(4096, np.float16))
    assert x.grad.tolist() == [4096, 0] and x.grad.dtype == np.float16


def test_triangles_want_two_dimensions():
    for op in (minidl.tril, minidl.triu):
        with pytest.raises(ValueError, match=f"{op.__name__}: wants at least 2"):
            op(minidl.ones(3))
