"""kernels/relu.cu: forward and backward against the NumPy forms, to the bit, nan and all sizes."""

import numpy as np
import pytest

from minidl import cuda
from minidl.nn import functional as F
from minidl.ops import activations
from tests.kernel_arrays import SIZES, normal, with_and_without


def numbers(n, dtype, seed):
    x = normal(n, dtype, seed)
    x[::7], x[3::11], x[5::13], x[1::17] = 0, np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("n", SIZES)
def test_equals_the_numpy_form(n, dtype):
    x, gy = numbers(n, dtype, 1), numbers(n, dtype, 2)
    y = activations.relu_by_kernel(x)
    np.testing.assert_array_equal(y, activations.relu_by_numpy(x))
    np.testing.assert_array_equal(activations.relu_by_kernel_backward(gy, y),
                                  activations.relu_by_numpy_backward(gy, y))


@pytest.mark.parametrize("dtype, t", [("f4", "float"), ("f2", "__half")])
@pytest.mark.parametrize("n", [1, 37, 64])
def test_the_packs_of_a_gpu_give_the_same_and_nothing_is_found_under_watch(n, dtype, t):
    x, gy = numbers(n, dtype, 1), numbers(n, dtype, 2)
    y, out = activations.relu_by_numpy(x), np.empty_like(x)
    n_packs = -(-n * x.itemsize // 16)
    for name, args, wanted in (
            ("relu", (out, x), y),
            ("relu_backward", (out, gy, y), activations.relu_by_numpy_backward(gy, y))):
        for kind, sizes in (("", (n,)), ("_packs", (n, n_packs))):
            report = cuda.check("relu.cu", 3, 32, (*args, *sizes), name=name + kind,
                                defines={"T": t}, outputs=("gx" if "back" in name else "out",))
            assert not report.findings, str(report)
            np.testing.assert_array_equal(out, wanted)


def test_shapes_of_all_kinds_pass_through():
    for x, gy in ((normal((), "f4", 1), normal((), "f4", 2)),
                  (normal((3, 5), "f4", 1).T, normal((5, 3), "f4", 2))):
        (y, (g,)), (plain_y, (plain_g,)) = with_and_without(F.relu, (x,), gy)
        np.testing.assert_array_equal(y, plain_y)
        np.testing.assert_array_equal(g, plain_g)
        assert y.shape == g.shape == x.shape
