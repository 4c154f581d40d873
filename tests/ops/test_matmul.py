"""Matrix products: what the rows of samples_nn.py do not reach."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops.matmul import _for_blas, column_sums, product


def test_operator_is_reflected_for_arrays():
    a, w = np.arange(6.0).reshape(2, 3), minidl.Tensor(np.arange(12.0).reshape(3, 4))
    np.testing.assert_array_equal((a @ w).numpy(), a @ w.numpy())
    np.testing.assert_array_equal((w.T @ a.T).numpy(), w.numpy().T @ a.T)


def test_integers_multiply_exactly():
    a = np.arange(6).reshape(2, 3)
    y = minidl.matmul(minidl.Tensor(a), minidl.Tensor(a.T))
    assert y.dtype == np.int64
    np.testing.assert_array_equal(y.numpy(), a @ a.T)


def test_fp16_sums_in_fp32():
    # 4096 ones and a half of the smallest step at 4096: an fp16 sum stops growing at 2048
    a = np.ones((1, 4097), np.float16)
    y = product(np, a, a.T.copy())
    assert y.dtype == np.float16 and y[0, 0] == np.float16(4097)


@pytest.mark.parametrize("a", [
    np.arange(48.0).reshape(6, 8)[::2, ::2], np.arange(12.0).reshape(3, 4)[::-1, ::-1],
    np.broadcast_to(np.arange(4.0), (3, 4)), np.broadcast_to(np.arange(3.0)[:, None], (3, 4)),
], ids=["steps", "backwards", "equal rows", "equal columns"])
def test_strides_that_blas_cannot_walk_are_copied(a):
    assert _for_blas(a).flags.c_contiguous and _for_blas(a) is not a
    np.testing.assert_array_equal(product(np, a, a.T), a.copy() @ a.copy().T)


@pytest.mark.parametrize("a", [
    np.ones((3, 4)), np.ones((4, 3)).T, np.ones((3, 9))[:, :4], np.ones((1, 8))[:, ::2],
    np.ones((5, 2, 3, 4)).transpose(0, 2, 1, 3),
])
def test_strides_that_blas_can_walk_are_not(a):
    assert _for_blas(a) is a


def test_column_sums_of_fp16_do_not_saturate():
    # two columns: NumPy sums a single one in pairs, which would hide an fp16 sum that ends at 2048
    assert column_sums(np, np.ones((3000, 2), np.float16)).tolist() == [3000, 3000]


@pytest.mark.parametrize("a, b", [
    ((2, 3), (2, 3)), ((), (3,)), ((3,), (2, 4)), ((2, 2, 3), (3, 3, 2)),
])
def test_wrong_shapes_are_named(a, b):
    with pytest.raises(ValueError, match="matmul: shapes .*want|matmul: shapes .*equal or 1"):
        minidl.matmul(minidl.Tensor(np.ones(a)), minidl.Tensor(np.ones(b)))


def test_mixed_dtypes_are_refused():
    x, w = minidl.Tensor(np.ones((2, 3))), minidl.Tensor(np.ones((4, 3), np.float32))
    with pytest.raises(TypeError, match="linear: input is float64, weight is float32"):
        F.linear(x, w)
    with pytest.raises(TypeError, match="matmul: input is float64, other is float32"):
        x @ w.T


def test_linear_names_wrong_shapes():
    x, w = minidl.Tensor(np.ones((2, 5))), minidl.Tensor(np.ones((4, 3)))
    with pytest.raises(ValueError, match=r"linear: input \(2, 5\), weight \(4, 3\)"):
        F.linear(x, w)
    with pytest.raises(ValueError, match=r"linear: bias must .*\(4,\).*got \(3,\)"):
        F.linear(minidl.Tensor(np.ones((2, 3))), w, minidl.Tensor(np.ones(3)))


def test_linear_saves_only_what_the_wanted_gradients_need():
    x, w = minidl.Tensor(np.ones((2, 3)), requires_grad=True), minidl.Tensor(np.ones((4, 3)))
    assert F.linear(x, w).grad_fn.saved[0] is None  # the input serves the weight's gradient alone
    x, w = minidl.Tensor(np.ones((2, 3))), minidl.Tensor(np.ones((4, 3)), requires_grad=True)
    assert F.linear(x, w).grad_fn.saved[1] is None


def test_products_of_vectors_and_batches_refuse_other_shapes():
    def x(*shape):
        return minidl.Tensor(np.ones(shape))

    for call, words in [
        (lambda: minidl.bmm(x(2, 3, 4), x(4, 5)), r"bmm: shapes \(2, 3, 4\) and \(4, 5\); want"),
        (lambda: minidl.bmm(x(2, 3, 4), x(1, 4, 5)), "bmm: .*with the same b and k"),
        (lambda: minidl.bmm(x(2, 3, 4), x(2, 3, 4)), "bmm: .*with the same b and k"),
        (lambda: minidl.dot(x(3), x(4)), r"dot: shapes \(3,\) and \(4,\); want two vectors"),
        (lambda: minidl.dot(x(2, 2), x(2, 2)), "dot: .* want two vectors"),
        (lambda: minidl.outer(x(3), x(1, 3)), r"outer: shapes \(3,\) and \(1, 3\); want two"),
        (lambda: minidl.outer(x(), x(3)), "outer: .* want two vectors"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
    for name, shape in (("bmm", (1, 1, 1)), ("dot", (1,))):
        with pytest.raises(TypeError, match=f"{name}: input is float64, .* is float32"):
            getattr(minidl, name)(x(*shape), x(*shape).float())
    assert minidl.outer(x(2), x(3).float()).dtype == np.float64  # elementwise: dtypes promote
