"""minidl/fused/silu_gate.py."""

import numpy as np
import pytest

import minidl
from minidl import ops
from minidl.fused import silu_gate as fused
from minidl.gradcheck import gradcheck
from tests.fused.common import SIZES, backward, normal, tensors

# a few roundings of float32, or one of float16
CLOSE = {
    "f4": dict(rtol=2e-6, atol=1e-6),
    "f2": dict(rtol=1e-3, atol=1e-4),
    "f8": dict(rtol=1e-13, atol=1e-13),
}


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize("n", SIZES)
def test_equals_the_formula_forward_and_backward(n, dtype):
    a, b, g = 3 * normal(n, dtype, 1), normal(n, dtype, 2), normal(n, dtype, 3)
    y, (ga, gb) = backward(fused.silu_gate, [a, b], g)
    expected, da, db = fused.reference(a, b)
    np.testing.assert_allclose(y, expected, **CLOSE[dtype])
    np.testing.assert_allclose(ga, g * da, **CLOSE[dtype])
    np.testing.assert_allclose(gb, g * db, **CLOSE[dtype])


def test_equals_the_plain_ops():
    a, b, g = (normal((9, 33), "f4", i) for i in range(3))
    y, grads = backward(fused.silu_gate, [a, b], g)
    plain_y, plain_grads = backward(lambda a, b: ops.activations.silu(a) * b, [a, b], g)
    for ours, plain in zip((y, *grads), (plain_y, *plain_grads)):
        np.testing.assert_allclose(ours, plain, **CLOSE["f4"])


def test_far_from_zero_it_is_a_b_or_nothing():
    a = np.array([-3e38, -100, 100, np.nan], np.float32)
    y, (ga, gb) = backward(fused.silu_gate, [a, np.full_like(a, 2)], np.ones_like(a))
    np.testing.assert_allclose(y, [0, 0, 200, np.nan], atol=1e-30)
    np.testing.assert_allclose(ga, [0, 0, 2, np.nan], atol=1e-30)
    np.testing.assert_allclose(gb, [0, 0, 100, np.nan], atol=1e-30)


def test_gradients_are_central_differences():
    gradcheck(fused.silu_gate, normal((3, 4), "f8", 1), normal((3, 4), "f8", 2))


def test_views_are_read_in_their_own_order():
    a, b = normal((6, 8), "f4", 1).T, normal((8, 12), "f4", 2)[:, ::2]
    np.testing.assert_array_equal(
        fused.silu_gate(*tensors(a, b)).data, fused.silu_gate(*tensors(a.copy(), b.copy())).data
    )


def test_unequal_shapes_are_named():
    with pytest.raises(ValueError, match=r"silu_gate: want equal shapes, got \(2,\) and \(1,\)"):
        fused.silu_gate(minidl.zeros(2), minidl.zeros(1))
