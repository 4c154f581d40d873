"""Tests the class Tensor: its array, operators, changes in place, and conversions to other
libraries."""

import operator

import numpy as np
import pytest

import minidl
from minidl import Tensor


def leaf(*values, dtype=np.float32):
    return Tensor(np.array(values, dtype), requires_grad=True)


def test_wraps_an_array_without_copying_and_nothing_else():
    a = np.zeros(3)
    assert Tensor(a).array is a
    for wrong in (3.0, np.float32(1), Tensor(a), "ab"):
        with pytest.raises(TypeError, match="minidl.tensor"):
            Tensor(wrong)


def test_of_a_list_and_of_sizes_it_is_pytorchs_constructor():
    assert Tensor([1, 2]).dtype == np.float32 and Tensor((1, 2)).tolist() == [1, 2]
    assert Tensor(3).shape == (3,) and Tensor(2, 3).shape == (2, 3)
    assert Tensor(2, 3, 4).shape == (2, 3, 4) and not Tensor(2, 1).requires_grad
    assert Tensor(np.zeros(3), True).requires_grad
    with pytest.raises(TypeError, match="takes 2 arguments, .* got 1 more"):
        Tensor(np.zeros(3), True, 4)


def test_only_floating_tensors_require_a_gradient():
    with pytest.raises(TypeError, match="int64"):
        Tensor(np.arange(3), requires_grad=True)
    x = minidl.zeros(2).requires_grad_()
    assert x.requires_grad and not x.requires_grad_(False).requires_grad
    with pytest.raises(RuntimeError, match="detach"):
        (leaf(1.0) * 2).requires_grad = False


def test_metadata():
    x = minidl.zeros(2, 3, dtype=np.float64)
    assert (x.shape, x.ndim, x.dim(), x.numel(), x.element_size(), x.nbytes, len(x)) == (
        (2, 3), 2, 2, 6, 8, 48, 2)
    assert x.size() == (2, 3) and x.size(-1) == 3
    assert x.dtype == minidl.float64 and x.device == "cpu" and x.is_leaf
    assert x.is_contiguous() and not x.T.is_contiguous()


OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow,
             operator.mod, operator.floordiv, operator.eq, operator.ne, operator.lt, operator.le,
             operator.gt, operator.ge]


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
def test_operators_and_their_reflections_compute_what_numpy_does(op):
    a, b = np.float32([[1, 2, 3], [4, 5, 6]]), np.float32([3, 2, 1])
    for left, right in [(a, b), (a, 2.0), (2.0, a), (a, 3), (3, a)]:
        wanted = op(left, right)
        for x in [Tensor(left) if isinstance(left, np.ndarray) else left]:
            for y in [Tensor(right) if isinstance(right, np.ndarray) else right]:
                got = op(x, y)
                assert isinstance(got, Tensor) and got.dtype == wanted.dtype
                np.testing.assert_allclose(got.array, wanted, rtol=1e-6)
    # An array on the left must use the tensor's operator. Otherwise the result is not in the graph.
    x = Tensor(b, requires_grad=True)
    assert isinstance(op(a, x), Tensor) and isinstance(op(np.float32(2), x), Tensor)


def test_logical_operators():
    a, b = np.array([True, True, False]), np.array([True, False, False])
    for op in (operator.and_, operator.or_, operator.xor):
        assert np.array_equal(op(Tensor(a), Tensor(b)).array, op(a, b))
        assert np.array_equal(op(True, Tensor(b)).array, op(True, b))
    assert np.array_equal((~Tensor(a)).array, ~a)
    assert np.array_equal((-Tensor(np.arange(3))).array, [0, -1, -2])
    assert np.array_equal(abs(Tensor(np.array([-1, 2]))).array, [1, 2])


def test_foreign_operands_are_refused_in_python_s_way():
    x = minidl.ones(2)
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "a"
    with pytest.raises(TypeError):
        [1, 2] * x
    assert (x == None) is False and (x != "a") is True  # noqa: E711
    assert x in {x: 1}  # hashed by identity


# -- in place


def test_in_place_operators_under_no_grad_keep_the_memory_and_count_versions():
    w = leaf(1, 2, 3)
    memory, me = w.array, w
    with minidl.no_grad():
        w += 1
        w *= minidl.tensor([1.0, 2.0, 3.0])
        w -= np.ones(3, np.float32)
        w /= 2
    assert w is me and w.array is memory and w.version == 4
    assert memory.tolist() == [0.5, 2.5, 5.5]


def test_in_place_change_of_a_leaf_in_grad_mode_is_refused():
    w = leaf(1, 2)
    for change in (lambda: w.__iadd__(1), lambda: w.copy_(0), lambda: w.fill_(1),
                   lambda: w.__setitem__(0, 1)):
        with pytest.raises(RuntimeError, match="no_grad|not recorded"):
            change()
    assert w.version == 0


def test_augmented_assignment_in_a_graph_makes_a_new_tensor():
    w = leaf(1, 2)
    y = w * 2.0
    before = y
    y += w
    y *= 3.0
    y.sum().backward()
    assert y is not before and np.array_equal(before.array, [2, 4])
    assert np.array_equal(w.grad, [9, 9])
    x = minidl.zeros(2)
    x += w  # a constant plus a value of the graph is in the graph
    assert x.requires_grad


def test_augmented_assignment_of_a_constant_is_in_place():
    x = minidl.zeros(3)
    memory = x.array
    x += 2
    assert x.array is memory and np.array_equal(memory, [2, 2, 2])


def test_in_place_does_not_change_the_dtype():
    n = minidl.arange(3)
    with pytest.raises(TypeError):
        n += 0.5
    assert np.array_equal(n.array, [0, 1, 2])


@pytest.mark.gpu
def test_copy_between_devices():
    here, there = minidl.zeros(2, 3), minidl.zeros(2, 3, device="cuda")
    assert there.copy_(np.arange(3.0)) is there and there.version == 1
    assert here.copy_(there).tolist() == [[0, 1, 2]] * 2 and here.device == "cpu"
    there.copy_(minidl.ones(3)).copy_(np.float64(5))
    assert there.device == "cuda:0" and here.copy_(there).tolist() == [[5, 5, 5]] * 2
    for x in (minidl.arange(3), minidl.arange(3, device="cuda")):
        for floats in (minidl.ones(3), minidl.ones(3, device="cuda")):
            with pytest.raises(TypeError, match="(?i)cannot c"):  # NumPy says: cannot cast
                x.copy_(floats)


def test_copy_broadcasts_and_casts():
    x = minidl.zeros(2, 3)
    assert x.copy_(np.arange(3.0)) is x
    assert np.array_equal(x.array, [[0, 1, 2]] * 2) and x.dtype == np.float32
    with pytest.raises(ValueError):
        x.copy_(np.zeros(4))


def test_assigning_data_counts_a_version_and_keeps_the_shape():
    w = leaf(1, 2)
    w.data = np.zeros(2, np.float32)
    w.data -= np.float32(1)
    assert w.version == 2 and np.array_equal(w.array, [-1, -1])
    with pytest.raises(TypeError, match=r"data wants a Tensor or an array; got int. .* x.fill_"):
        w.data = 5
    with pytest.raises(ValueError, match=r"shape of its tensor, \(2,\); got shape \(3,\)"):
        w.data = np.zeros(3, np.float32)


def test_data_is_a_tensor_of_the_same_memory_outside_the_graph():
    w = leaf(1, 2)
    y = (w * w).sum()
    assert w.data.array is w.array and not w.data.requires_grad and w.data.is_leaf
    w.data[0] = 5
    w.data.fill_(3)
    w.data.mean()  # makes no node in the graph
    assert np.array_equal(w.array, [3, 3]) and w.version == 0
    y.backward()  # writes through .data are not noticed, as in PyTorch
    assert np.array_equal(w.grad.array, [6, 6])


def test_grad_is_the_same_tensor_until_it_is_replaced():
    w = leaf(1, 2)
    assert w.grad is None
    w.sum().backward()
    first = w.grad
    assert isinstance(first, Tensor) and not first.requires_grad and first.is_leaf
    w.sum().backward()
    assert w.grad is first and np.array_equal(first.array, [2, 2])
    first.zero_()
    assert np.array_equal(w.grad.array, [0, 0])
    w.grad = None
    w.sum().backward()
    assert w.grad is not first and np.array_equal(first.array, [0, 0])


def test_a_gradient_that_is_set_is_a_tensor_or_becomes_one():
    w = leaf(1, 2)
    array, gradient = np.ones(2, np.float32), minidl.ones(2)
    w.grad = gradient
    assert w.grad is gradient
    w.grad = array
    assert w.grad.array is array
    w.grad /= 2
    assert w.grad.array is array and np.array_equal(array, [0.5, 0.5])


@pytest.mark.parametrize("wrong, error, words", [
    (np.ones(3, np.float32), ValueError, r"its tensor, \(2,\); got shape \(3,\)"),
    (np.ones((), np.float32), ValueError, r"its tensor, \(2,\); got shape \(\)"),
    (np.ones(2), ValueError, r"its tensor, float32; got dtype float64"),
    (minidl.ones(2, dtype="f2"), ValueError, r"its tensor, float32; got dtype float16"),
    ([1.0, 2.0], TypeError, r"an array of NumPy or CuPy; got list"),
    (1.0, TypeError, r"an array of NumPy or CuPy; got float"),
])
def test_a_gradient_that_does_not_fit_is_refused(wrong, error, words):
    w = leaf(1, 2)
    with pytest.raises(error, match=words):
        w.grad = wrong
    assert w.grad is None


@pytest.mark.gpu
def test_a_gradient_on_another_device_is_refused():
    w = leaf(1, 2)
    with pytest.raises(ValueError, match="the device of its tensor, cpu; got device cuda:0"):
        w.grad = minidl.ones(2, device="cuda")


def test_setitem_takes_tensors_as_index_and_value():
    x = minidl.zeros(3, 2)
    x[minidl.tensor([0, 2]), minidl.tensor([1, 1])] = minidl.tensor([5.0, 6.0])
    x[1] = 7
    assert np.array_equal(x.array, [[0, 5], [7, 7], [0, 6]])


def test_detach_shares_memory_outside_the_graph():
    x = leaf(1, 2)
    y = (x * 2).detach()
    assert y.is_leaf and not y.requires_grad
    assert x.detach().array is x.array


# -- other libraries


def test_numpy_sees_a_tensor_as_its_array():
    x = minidl.arange(6).reshape(2, 3)
    assert np.asarray(x) is x.numpy() or np.shares_memory(np.asarray(x), x.numpy())
    assert np.asarray(x, dtype=np.float32).dtype == np.float32
    assert not np.shares_memory(np.array(x), x.numpy())
    assert np.concatenate([x, x]).shape == (4, 3)
    assert np.array_equal(np.stack([minidl.tensor(1.0), minidl.tensor(2.0)]), [1, 2])


def test_dlpack_shares_memory_with_numpy():
    x = minidl.arange(4, dtype=np.float32)
    shared = np.from_dlpack(x)
    x[0] = 9
    assert shared[0] == 9
    back = minidl.from_dlpack(shared)
    assert np.shares_memory(back.array, x.array)


def test_dlpack_shares_memory_with_torch():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ours = minidl.arange(4, dtype=np.float32)
    theirs = torch.from_dlpack(ours)
    theirs[1] = 7
    assert ours[1].item() == 7
    again = minidl.from_dlpack(theirs)
    assert np.shares_memory(again.array, ours.array)


def test_python_numbers():
    x = minidl.tensor(2.5)
    assert (float(x), int(x), bool(x), x.item(), f"{x:.2f}") == (2.5, 2, True, 2.5, "2.50")
    assert minidl.arange(4).tolist() == [0, 1, 2, 3]
    assert [10, 20, 30][minidl.tensor(1)] == 20
    with pytest.raises(TypeError, match="integer"):
        [1][minidl.tensor(0.0)]
    with pytest.raises(ValueError, match=r"one element.*\(2,\)"):
        minidl.ones(2).item()


def test_iteration_and_length():
    rows = list(minidl.arange(6).reshape(3, 2))
    assert [r.tolist() for r in rows] == [[0, 1], [2, 3], [4, 5]]
    a, b = leaf(1, 2)
    (a * b).backward()  # elements that were unpacked from a leaf are in the graph
    with pytest.raises(TypeError, match="0-d"):
        _ = len(minidl.tensor(1.0))


def test_repr_shows_what_matters():
    assert repr(minidl.tensor([1.0, 2.0])) == "tensor([1., 2.])"
    assert repr(minidl.zeros(1, dtype=np.float64)) == "tensor([0.], dtype=torch.float64)"
    assert "requires_grad=True" in repr(leaf(1))
    assert "grad_fn=<MulBackward0>" in repr(leaf(1) * 2)


def test_a_hook_changes_the_gradient_of_a_leaf_before_it_is_added():
    x = leaf(1, 2)
    seen = []
    x.on_grad_ready(lambda x: seen.append(x.grad.tolist()))
    x.register_hook(lambda g: g * 10)
    last = x.register_hook(lambda g: seen.append(g.tolist()))
    (x * x + x).sum().backward()  # x gets two gradients, but a hook is called once
    assert seen == [[30, 50], [30, 50]] and x.grad.tolist() == [30, 50]
    last.remove()
    assert minidl.grad((2 * x).sum(), x)[0].tolist() == [20, 20] and len(seen) == 2


def test_a_hook_changes_the_gradient_of_a_result_for_all_below_it():
    x = leaf(1, 2)
    y = x * 3
    y.retain_grad()
    handle = y.register_hook(lambda g: -g)
    (y * y).sum().backward(retain_graph=True)
    assert y.grad.tolist() == [-6, -12] and x.grad.tolist() == [-18, -36]
    handle.remove()
    x.grad = None
    (y * 1).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_a_hook_that_does_not_fit_is_refused():
    with pytest.raises(RuntimeError, match="does not require"):
        minidl.ones(2).register_hook(print)
    x = leaf(1, 2)
    x.register_hook(lambda g: g[:1])
    with pytest.raises(RuntimeError, match=r"shape \(2,\); got \(1,\)"):
        x.sum().backward()


def test_functions_of_numpy_give_tensors_outside_of_the_graph():
    x = minidl.tensor([1.0, 4.0])
    y = np.sqrt(x)
    assert isinstance(y, minidl.Tensor) and y.tolist() == [1, 2] and y.dtype == np.float32
    assert np.maximum(x, 2).tolist() == [2, 4]
    with pytest.raises(RuntimeError, match="np.sqrt records no graph, but the tensor requires"):
        np.sqrt(leaf(1, 4))


@pytest.mark.parametrize("op", (
    "add sub mul truediv floordiv mod pow lt le gt ge eq ne matmul").split())
def test_an_operator_of_an_array_and_a_tensor_is_the_tensors(op):
    op = getattr(operator, op)
    a, x = np.array([5, 3], np.float32), leaf(2, 3)
    y, wanted = op(a, x), op(minidl.tensor(a), x)
    assert isinstance(y, minidl.Tensor) and y.tolist() == wanted.tolist()
    assert y.requires_grad == wanted.requires_grad
    if op is not operator.matmul:
        assert isinstance(op(np.float32(5), x.sum()), minidl.Tensor)
