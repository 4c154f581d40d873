"""minidl/ops/add3.py."""

import numpy as np
import pytest

import minidl
from minidl.cuda.launch import elementwise
from minidl.ops import add3
from tests.kernel_arrays import SIZES, normal, tensors


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8"])
@pytest.mark.parametrize("n", SIZES)
def test_sums_three(dtype, n):
    a, b, c = (normal(n, dtype, seed) for seed in range(3))
    wide = a.astype("f8" if dtype == "f8" else "f4")
    # (a + b) + c in float32 or wider, rounded once at the end: the same bits
    expected = (wide + b.astype(wide.dtype) + c.astype(wide.dtype)).astype(dtype)
    np.testing.assert_array_equal(add3.add3(*tensors(a, b, c)).array, expected)


def test_naive_adds_two():
    a, b = normal(257, "f4", 0), normal(257, "f4", 1)
    out = np.empty_like(a)
    elementwise("add3.cu", "add3_naive", "f4", 257, (out, a, b, 257))
    np.testing.assert_array_equal(out, a + b)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("n", [1, 7, 8, 1031])
def test_a_gpu_takes_packs_of_16_bytes(n, dtype):
    """The plain kernel's bits: whole, with a tail, and from an address off a multiple of 16."""
    b, c, memory = normal(n, dtype, 1), normal(n, dtype, 2), normal(n + 1, dtype, 3)
    for a in (memory[:n].copy(), memory[1:]):
        out, want = np.empty(n, dtype), np.empty(n, dtype)
        add3.packs(out, a, b, c)
        elementwise(add3.FILE, "add3", dtype, n, (want, a, b, c, n))
        np.testing.assert_array_equal(out, want)


def test_every_input_gets_the_gradient_of_the_output():
    inputs = tensors(*(normal((3, 5), "f4", s) for s in range(3)), requires_grad=True)
    g = normal((3, 5), "f4", 9)
    add3.add3(*inputs).backward(g)
    for x in inputs:
        np.testing.assert_array_equal(x.grad, g)


def test_views_are_read_in_their_own_order():
    a = normal((4, 6), "f4", 0)
    b, c = normal((6, 4), "f4", 1).T, normal((8, 12), "f4", 2)[::2, ::2]
    np.testing.assert_array_equal(add3.add3(*tensors(a, b, c)).array, a + b + c)
    assert add3.add3(*tensors(a[0, 0], b[0, 0], c[0, 0])).shape == ()


def test_unequal_shapes_are_refused():
    with pytest.raises(
        ValueError, match=r"add3: want three equal shapes, got \(2,\), \(2,\), \(1,\)"
    ):
        add3.add3(minidl.zeros(2), minidl.zeros(2), minidl.zeros(1))
