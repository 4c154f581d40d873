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
    0, -1, slice(None), slice(1, None, 2), None, ..., (0, 1), (..., 1), (0, 1, 2),
    (slice(None), None, 2), [0, 2], [0, 0, -1], np.array([[0, 1], [2, 2]]), (slice(None), [1, 1]),
    ([0, 1], slice(1), [2, 2]), np.array(1), np.int64(2), True, False,
    np.array([True, False, True]), (slice(None), np.array([True] * 3 + [False])),
    np.zeros((3, 4), bool), [], (slice(0, 0),),
]


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_gradient_is_the_sum_over_places_an_element_went_to(index):
    x = minidl.Tensor(np.arange(60.0).reshape(3, 4, 5), requires_grad=True)
    y = x[index]
    if isinstance(index, list) and not index:
        index = np.array([], np.int64)  # NumPy's [] is of floats
    assert np.array_equal(y.array, x.array[index])
    gy = np.random.default_rng(0).standard_normal(y.shape)
    y.backward(gy)
    wanted = np.zeros(60)
    places = np.arange(60).reshape(3, 4, 5)[index]
    for place, g in zip(np.ravel(places), np.ravel(gy)):  # one at a time: nothing to get wrong
        wanted[place] += g
    np.testing.assert_allclose(x.grad, wanted.reshape(3, 4, 5), rtol=1e-12, atol=1e-14)


ORDERS = {  # of x of shape (3, 4, 5): the shape, and where its element [i, j, ...] is from
    "number, array": ((0, slice(None), [1, 3]), lambda x: np.stack([x[0, :, 1], x[0, :, 3]], 1)),
    "array, number": (([1, 0], slice(None), 2), lambda x: np.stack([x[1, :, 2], x[0, :, 2]])),
    "number, ..., array": ((0, ..., [1, 3]), lambda x: np.stack([x[0, :, 1], x[0, :, 3]], 1)),
    "number, None, array": ((0, None, [1, 3]), lambda x: np.stack([x[0, 1], x[0, 3]])[None]),
    "array, None, array": (([0, 1], None, [1, 3]),
                           lambda x: np.stack([x[0, 1], x[1, 3]])[:, None]),
    "array, empty ..., array": (([0, 1], ..., [1, 3], 4), lambda x: np.stack([x[0, 1, 4],
                                                                              x[1, 3, 4]])),
    "arrays apart": (([0, 1], slice(None), [1, 3]), lambda x: np.stack([x[0, :, 1], x[1, :, 3]])),
    "None, arrays, empty ...": ((None, [0, 1], ..., [1, 3]),
                                lambda x: np.stack([x[0, :, 1], x[1, :, 3]])[:, None]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_numbers_and_none_come_before_arrays(name):
    index, picked = ORDERS[name]
    x = np.arange(60.0, dtype="f4").reshape(3, 4, 5)
    wanted = picked(x)
    y = minidl.tensor(x)[index]
    assert y.shape == wanted.shape and np.array_equal(y.numpy(), wanted)
    z = minidl.zeros(3, 4, 5)
    z[index] = minidl.tensor(wanted)
    assert np.array_equal(z[index].numpy(), wanted) and z.numpy().sum() == wanted.sum()


def test_an_element_is_a_view_and_can_be_written():
    x = minidl.zeros(2, 3)
    x[1, 2].fill_(7)
    x.view(-1)[0].copy_(5)
    assert x.tolist() == [[5, 0, 0], [0, 0, 7]]


def test_what_has_two_meanings_is_refused():
    x = minidl.zeros(2, 3)
    for index, error, words in (
            ([[0, 1], [1, 2]], IndexError, "list of lists"),
            ([minidl.tensor(0), minidl.tensor(1)], IndexError, "list of lists"),
            ([slice(None), 0], IndexError, "list of lists"),
            (minidl.tensor([1, 0], dtype=np.uint8), IndexError, "can be a mask or a list"),
            (np.array([1, 0], np.uint8), IndexError, "can be a mask or a list"),
            (minidl.tensor([1, 0], dtype=np.int16), IndexError, "got int16"),
            (slice(None, None, -1), ValueError, "step of 1 or more, got -1; minidl.flip"),
            (np.bool_(True), IndexError, "got bool"), ("a", IndexError, "got str"),
            ((..., ...), IndexError, "single ellipsis"),
            ((..., [0], ...), IndexError, "at most one Ellipsis"),
            ((0, [True, False]), IndexError, r"mask at dimension 1 .* got \(2,"),
            ((0, 0, [0]), IndexError, "at most 2 indices"),
            ([0, 2], IndexError, "index 2 is out of bounds")):
        with pytest.raises(error, match=words):
            x[index]
        with pytest.raises(error, match=words):
            x[index] = 1.0
    assert not x.numpy().any()


@pytest.mark.parametrize("rows", [[0, 0], np.array([0, 0])], ids=["list", "array"])
def test_an_index_that_changes_after_reading_does_not_change_the_gradient(rows):
    x = minidl.zeros(3, requires_grad=True)
    y = x[rows]
    rows[:] = [1, 2]
    y.sum().backward()
    assert x.grad.array.tolist() == [2, 0, 0]


def test_assignment_to_elements_is_recorded():
    x, f = minidl.ones(3, requires_grad=True), minidl.tensor(5.0, requires_grad=True)
    y = minidl.zeros(3)
    y[0] = x[0] * 2
    y[1:] = x[1:] * f
    (y * y).sum().backward()
    assert y.tolist() == [2, 5, 5] and x.grad.array.tolist() == [8, 50, 50] and f.grad == 20
    x.grad = f.grad = None
    z = x * 3
    z[[2, 0]] = f  # what x had there is gone
    z.sum().backward()
    assert x.grad.array.tolist() == [0, 3, 0] and f.grad == 2


def test_an_assigned_value_of_another_dtype_or_with_ones_in_front():
    x = minidl.ones(1, 1, 2, dtype=np.float64, requires_grad=True)
    y = minidl.zeros(3, 2)
    y[1:] = x
    with minidl.amp.autocast():
        y[0] = x[0, 0].half()
    assert y.dtype == np.float32 and y.tolist() == [[1, 1]] * 3
    y.sum().backward()
    assert x.grad.dtype == np.float64 and x.grad.array.tolist() == [[[3, 3]]]


def test_assignments_that_the_graph_cannot_hold_are_refused():
    x, v = minidl.ones(3, requires_grad=True), minidl.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf that requires a gradient"):
        x[0] = 1.0
    base = x * 1.0
    for view in base[1:], base.detach().reshape(3, 1):
        with pytest.raises(RuntimeError, match="elements of a view"):
            view[0] = v
    saved = base * base
    base[0] = v
    with pytest.raises(RuntimeError, match="changed in place"):
        saved.sum().backward()
    assert x.tolist() == [1, 1, 1]


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
    with pytest.raises(ValueError, match="gather: the index must not be larger"):
        x.gather(1, minidl.zeros(3, 1, dtype=np.int64))


def test_index_select_refuses_what_torch_refuses():
    x, i = minidl.zeros(2, 3), minidl.tensor([0, 2])
    for wrong, words in [
        ((2, i), "index_select: dim 2 is out of range"),
        ((0, i), r"index_select: indices from 0 to 2, but dimension 0 of shape \(2, 3\) has"),
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
    assert x.grad.array.tolist() == [4096, 0] and x.grad.dtype == np.float16


def test_triangles_want_two_dimensions():
    for op in (minidl.tril, minidl.triu):
        with pytest.raises(ValueError, match=f"{op.__name__}: wants at least 2"):
            op(minidl.ones(3))
