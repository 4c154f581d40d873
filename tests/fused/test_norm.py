"""minidl/fused/norm.py: the norm and the clipping of minidl/optim/clip.py."""

import math

import numpy as np
import pytest

from minidl.fused import dispatch
from minidl.fused import norm as fused
from minidl.fused.launch import CHUNK, chunk_list, pointers
from minidl.optim import clip_grad_norm_
from minidl.tensor import Tensor
from tests.fused.common import SIZES, normal

LENGTHS = [*SIZES, CHUNK - 1, 2 * CHUNK + 3]


def arrays(dtype):
    return [normal(n, dtype, n) for n in LENGTHS]


# float32 sums of 8192 in 8 or more lanes: a thousand roundings of 6e-8, which mostly cancel
@pytest.mark.parametrize("dtype, rtol", [("f4", 2e-6), ("f2", 2e-6), ("f8", 1e-14)])
def test_norm_of_all_elements(dtype, rtol):
    assert fused.global_norm(arrays(dtype)) == pytest.approx(
        fused.reference(arrays(dtype)), rel=rtol
    )
    mixed = arrays(dtype) + [np.array([3.0, 4.0])]
    assert fused.global_norm(mixed) == pytest.approx(fused.reference(mixed), rel=rtol)
    assert fused.global_norm([normal((7, 5), dtype, 1).T[::2]]) == pytest.approx(
        fused.reference([normal((7, 5), dtype, 1).T[::2]]), rel=rtol
    )


def test_every_element_counts_once():
    for i in (0, 255, 256, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        g = np.zeros(2 * CHUNK + 3, np.float32)
        g[i] = -3
        assert fused.global_norm([np.zeros(5, np.float32), g]) == 3.0
    assert fused.global_norm([]) == 0.0


def test_squares_beyond_fp16_are_fine():
    assert fused.global_norm([np.full(4, 60000, np.float16)]) == pytest.approx(120000, rel=1e-3)


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_clips_as_the_optimizers_do(dtype, max_norm):
    ours = arrays(dtype)
    params = [Tensor(np.zeros_like(a), requires_grad=True) for a in ours]
    for p, a in zip(params, ours):
        p.grad = a.copy()
    norm = clip_grad_norm_(params, max_norm)
    assert fused.clip(ours, max_norm) == pytest.approx(norm, rel=4e-6)
    for p, a in zip(params, ours):
        # the plain one rounds the factor to the arrays' dtype first
        np.testing.assert_allclose(a, p.grad, rtol={"f4": 5e-6, "f2": 2e-3}[dtype], atol=1e-7)


def test_a_tiny_gradient_is_divided_by_its_norm_and_a_millionth():
    g = [np.array([1e-6], np.float32)]
    fused.clip(g, 1e-7)
    np.testing.assert_allclose(g[0], 0.5e-7, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_gradient_makes_a_bad_norm(value):
    g = [np.ones(300, np.float32), np.array([value], np.float32)]
    assert not math.isfinite(fused.clip(g, 1.0))
    assert not np.isfinite(g[1]).any()


def test_the_rungs_for_a_gpu_give_the_same():
    g = [normal(300, "f4", 1), normal(70, "f4", 2)]
    expected = [(a.astype("f8") ** 2).sum() for a in g]
    doubled = [2 * a for a in g]
    chunks, table, partial = (
        chunk_list((300, 70)),
        pointers(np, g, np.float32, ""),
        np.empty(2, np.float32),
    )
    dispatch.kernel(fused.FILE, "sum_squares_many", "f4", ACC="float")(
        2, 64, (partial, table, chunks, 2)
    )
    np.testing.assert_allclose(partial, expected, rtol=1e-6)
    dispatch.kernel(fused.FILE, "scale_many", "f4", ACC="float")(2, 64, (table, 2.0, chunks, 2))
    for a, d in zip(g, doubled):
        np.testing.assert_array_equal(a, d)
