"""minidl/cuda/grad_norm.py: the norm by which minidl/optim/clip.py clips."""

import math

import numpy as np
import pytest

import minidl
from minidl.cuda import dispatch
from minidl.cuda import grad_norm as fused
from minidl.cuda.launch import CHUNK, chunk_list, pointers
from minidl.optim import clip_grad_norm_
from minidl.tensor import Tensor
from tests.kernel_arrays import SIZES, normal


def reference(arrays):
    """The norm, in float64."""
    return math.sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in arrays))


LENGTHS = [*SIZES, CHUNK - 1, 2 * CHUNK + 3]


def by_kernel(arrays):
    return math.sqrt(float(fused.square_sum(arrays)[0]))


def arrays(dtype):
    return [normal(n, dtype, n) for n in LENGTHS]


# float32 sums of 8192 in 8 or more lanes: a thousand roundings of 6e-8, which mostly cancel
@pytest.mark.parametrize("dtype, rtol", [("f4", 2e-6), ("f2", 2e-6), ("f8", 1e-14)])
def test_norm_of_all_elements(dtype, rtol):
    assert by_kernel(arrays(dtype)) == pytest.approx(
        reference(arrays(dtype)), rel=rtol
    )
    mixed = arrays(dtype) + [np.array([3.0, 4.0])]
    assert by_kernel(mixed) == pytest.approx(reference(mixed), rel=rtol)
    assert by_kernel([normal((7, 5), dtype, 1).T[::2]]) == pytest.approx(
        reference([normal((7, 5), dtype, 1).T[::2]]), rel=rtol
    )


def test_every_element_counts_once():
    for i in (0, 255, 256, CHUNK - 1, CHUNK, 2 * CHUNK + 2):
        g = np.zeros(2 * CHUNK + 3, np.float32)
        g[i] = -3
        assert by_kernel([np.zeros(5, np.float32), g]) == 3.0
    assert by_kernel([]) == 0.0


def test_squares_beyond_fp16_are_fine():
    assert by_kernel([np.full(4, 60000, np.float16)]) == pytest.approx(120000, rel=1e-3)


def clipped(max_norm, *grads):
    """(norm, gradients) after clipping with the kernel's norm."""
    params = [Tensor(np.zeros_like(g), requires_grad=True) for g in grads]
    for p, g in zip(params, grads):
        p.grad = g.copy()
    return clip_grad_norm_(params, max_norm), [p.grad.array for p in params]


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_clipping_is_the_same_with_and_without_kernels(dtype, max_norm):
    results = []
    for kernels in (True, False):
        with minidl.use_fused(kernels):
            norm, grads = clipped(max_norm, *arrays(dtype))
        assert norm == pytest.approx(reference(arrays(dtype)), rel=2e-6)
        results.append(grads)
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol={"f4": 5e-6, "f2": 2e-3}[dtype], atol=1e-7)


def test_a_tiny_gradient_is_divided_by_its_norm_and_a_millionth():
    _, (g,) = clipped(1e-7, np.array([1e-6], np.float32))
    np.testing.assert_allclose(g, 0.5e-7, rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value")  # inf * 0
def test_a_bad_gradient_makes_a_bad_norm(value):
    norm, (_, g) = clipped(1.0, np.ones(300, np.float32), np.array([value], np.float32))
    assert not math.isfinite(norm) and not np.isfinite(g).any()


def test_the_rungs_for_a_gpu_give_the_same():
    g = [normal(300, "f4", 1), normal(70, "f4", 2)]
    expected = [(a.astype("f8") ** 2).sum() for a in g]
    chunks, table, partial = (
        chunk_list((300, 70)),
        pointers(np, g, np.float32, ""),
        np.empty(2, np.float32),
    )
    dispatch.kernel(fused.FILE, "sum_squares_many", "f4", ACC="float")(
        2, 64, (partial, table, chunks, 2)
    )
    np.testing.assert_allclose(partial, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype, rtol", [("f4", 2e-6), ("f2", 2e-6), ("f8", 1e-14)])
def test_each_array_has_a_sum_of_its_own(dtype, rtol):
    """Of no elements, of less than a chunk and of several."""
    want = [reference([a]) ** 2 for a in arrays(dtype)]
    np.testing.assert_allclose(fused.square_sums(arrays(dtype)), want, rtol=rtol)
    assert fused.square_sums([]).shape == (0,)


def test_the_gpus_rung_adds_up_the_chunks_of_each_array():
    sizes = (300, 0, 3 * CHUNK + 1)
    partial = normal((len(chunk_list(sizes)), 2), "f4", 3)
    want = [partial[:1].sum(0, dtype="f8"), [0, 0], partial[1:].sum(0, dtype="f8")]
    np.testing.assert_allclose(fused.chunk_sums(partial, sizes), want, rtol=1e-14)
    sums = np.empty((3, 2))
    dispatch.kernel(fused.FILE, "chunk_sums_many", "f4", ACC="float")(
        6, 32, (sums, partial, fused.first_chunks(sizes), 2, 3))
    np.testing.assert_allclose(sums, want, rtol=1e-14)
