"""Embedding: the scatter-add against the obvious loop, and wrong indices."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops.embedding import scatter_add_rows
from tests.devices import host, put

RNG = np.random.default_rng(6)


@pytest.mark.parametrize("n", [0, 1, 2, 97])
@pytest.mark.parametrize("n_rows", [1, 5, 200])
def test_scatter_add_equals_add_at(n, n_rows):
    index, g = RNG.integers(0, n_rows, n), RNG.standard_normal((n, 3))
    wanted = np.zeros((n_rows, 3))
    np.add.at(wanted, index, g)
    # float64: sums of up to 97 terms of size 1, in another order
    np.testing.assert_allclose(scatter_add_rows(index, g, n_rows), wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("fused", [False, True])
def test_fp16_sums_of_many_rows_are_fp32(fused):
    with minidl.use_fused(fused):
        w = minidl.Tensor(np.ones((2, 3), np.float16), requires_grad=True)
        g = np.ones((2049, 3), np.float16)
        g[0] = 2048  # and 1 is 2048 in fp16, in whichever order the others are added
        F.embedding(np.zeros(2049, int), w).backward(g)
    assert w.grad.dtype == np.float16 and (w.grad[0] == 4096).all() and (w.grad[1] == 0).all()


@pytest.mark.parametrize("fused", [False, True])
def test_the_padding_row_is_read_and_does_not_learn(fused):
    with minidl.use_fused(fused):
        w = minidl.Tensor(RNG.standard_normal((4, 3)).astype(np.float32), requires_grad=True)
        y = F.embedding(np.array([0, 3, 0]), w, padding_idx=3)
        y.sum().backward()
    assert np.array_equal(y.numpy()[1], w.numpy()[3])
    assert w.grad[:, 0].tolist() == [2, 0, 0, 0]


def test_wrong_indices_are_named():
    w = minidl.Tensor(np.ones((5, 2)))
    for bad in (5, -1):
        with pytest.raises(IndexError, match="embedding: indices from .* rows 0 to 4"):
            F.embedding(np.array([0, bad]), w)
    with pytest.raises(IndexError, match="padding_idx must be from .* got 5"):
        F.embedding(np.array([0]), w, padding_idx=5)
    with pytest.raises(ValueError, match="got input of float64 and weight"):
        F.embedding(np.array([0.0]), w)


@pytest.mark.parametrize("fused", [False, True])
def test_an_inf_stays_in_its_row(fused, device):
    """Differences of running sums, which CuPy's reduceat takes, would carry it to rows behind, and
    lose small gradients behind large ones."""
    index, gy = np.array([0, 1, 2, 1, 3]), np.full((5, 2), 1e-3, np.float32)
    gy[0], gy[2] = 1e8, np.inf
    with minidl.use_fused(fused):
        w = minidl.Tensor(put(np.zeros((5, 2), np.float32), device), requires_grad=True)
        F.embedding(put(index, device), w).backward(put(gy, device))
    wanted = np.float32([1e8, 2e-3, np.inf, 1e-3, 0])
    np.testing.assert_allclose(host(w.grad)[:, 0], wanted, rtol=1e-6)
