"""Reductions: dtypes, empties, errors."""

import numpy as np
import pytest

import minidl


def leaf(values):
    return minidl.tensor(values, dtype=np.float64, requires_grad=True)


def test_integers_sum_in_int64_and_have_no_mean():
    x = minidl.full((1000,), 100, dtype=np.int8)
    for op in ("sum", "prod"):
        assert getattr(x, op)().dtype == np.int64
    assert x.sum().item() == 100_000 and x.cumsum(0)[-1].item() == 100_000
    for op in ("mean", "var", "std"):
        with pytest.raises(TypeError, match=f"^{op}: wants a floating dtype, got int8"):
            getattr(x, op)()
    assert x.mean(dtype=np.float32).item() == 100
    assert (x == 100).sum().item() == 1000


def test_what_has_no_value_is_nan_or_an_error_that_names_the_op():
    empty = minidl.zeros(0, 3)
    assert empty.sum().item() == 0 and empty.prod().item() == 1
    assert np.isnan(empty.mean().item()) and np.isnan(minidl.ones(1).var().item())
    assert empty.sum(0).tolist() == [0, 0, 0] and empty.sum(1).shape == (0,)
    for op in ("max", "min", "amax", "argmax"):
        with pytest.raises(ValueError, match=f"^{op}: .*" if op == "argmax" else "^a?(max|min): "):
            getattr(empty, op)()


@pytest.mark.parametrize("op", ["sum", "mean", "var", "amax", "any", "max", "argmax", "cumsum",
                                "logsumexp"])
def test_a_dim_that_does_not_exist_is_named(op):
    with pytest.raises(IndexError, match="dim 2 is out of range for a tensor of 2 dimensions"):
        getattr(minidl.ones(2, 3), op)(2)


def test_a_dim_named_twice_is_refused():
    with pytest.raises(ValueError, match="sum: .* dim .* names a dimension twice"):
        minidl.ones(2, 3).sum((1, -1))


def test_logsumexp_of_minus_infinities_is_minus_infinity_without_a_gradient():
    # PyTorch 2.13 gives nan gradients here; a row masked out whole should not spoil the rest
    x = leaf([[-np.inf, -np.inf], [0.0, 0.0]])
    y = x.logsumexp(1)
    y.backward(np.ones(2))
    assert y.tolist() == [-np.inf, np.log(2)]
    assert np.array_equal(x.grad, [[0, 0], [0.5, 0.5]])


def test_variance_of_a_large_offset():
    # the mean of squares minus the squared mean would lose everything here
    x = minidl.tensor([1e6, 1e6 + 8, 1e6 + 16])
    assert x.var().item() == 64
    assert x.std(unbiased=False).item() == pytest.approx(8 * (2 / 3) ** 0.5)


@pytest.mark.parametrize("correction, var", [(2, 2.5), (3, 5.0), (4, np.inf), (5, np.inf)])
def test_a_variance_without_degrees_of_freedom_is_infinite(correction, var):
    """It divides by n - correction, but by no less than 0: of equal numbers it is then nan."""
    x = leaf([1.0, 2.0, 3.0, 4.0])
    x.var(correction=correction).backward()
    assert x.var(correction=correction).item() == pytest.approx(var, rel=1e-15)
    assert x.std(correction=correction).item() == pytest.approx(var**0.5, rel=1e-15)
    if var == np.inf:
        assert np.isnan(minidl.ones(4).var(correction=correction).item())
        assert x.grad.tolist() == [-np.inf, -np.inf, np.inf, np.inf]


def test_fp16_sums_in_fp32():
    # along dim 0 of two columns: one by one, where an fp16 sum of ones ends at 2,048
    x = minidl.ones(4096, 2, dtype=np.float16, requires_grad=True)
    for op, value in {"sum": 4096, "mean": 1, "logsumexp": 1 + np.log(4096)}.items():
        y = getattr(x, op)(0)
        assert y.dtype == np.float16 and (y.numpy() == np.float16(value)).all()
    assert x.cumsum(0)[-1].tolist() == [4096, 4096]
    assert x.var(0).tolist() == [0, 0]
    x.cumsum(0).backward(np.ones((4096, 2), np.float16))
    assert x.grad.dtype == np.float16 and x.grad[0].tolist() == [4096, 4096]


def test_the_gradient_of_a_product_needs_no_division():
    x = leaf([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0]])
    x.prod(1).sum().backward()
    assert np.array_equal(x.grad, [[0, 6, 0], [0, 0, 0]])
    x = leaf([2.0, 0.0, 3.0])
    x.prod().backward()
    assert np.array_equal(x.grad, [0, 6, 0])


def test_sum_takes_a_dtype():
    assert minidl.ones(3, dtype=np.float16).sum(dtype=np.float64).dtype == np.float64
