"""Normalization: running statistics, and what the rows of samples_nn.py do not reach."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops import layer_norm

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 3, 2, 5)])
def test_running_statistics_equal_torch_step_by_step(shape):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    mean, var = np.zeros(3), np.ones(3)
    torch_mean, torch_var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    for momentum in (0.1, 0.1, 0.5, 1.0):
        x = RNG.standard_normal(shape) * 3 + 1
        F.batch_norm(minidl.Tensor(x), mean, var, training=True, momentum=momentum)
        torch.nn.functional.batch_norm(torch.tensor(x), torch_mean, torch_var, training=True,
                                       momentum=momentum)
        # float64: means of up to a hundred terms, in another order
        np.testing.assert_allclose(mean, torch_mean.numpy(), rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(var, torch_var.numpy(), rtol=1e-13)


def test_running_variance_divides_by_n_minus_one():
    mean, var = np.zeros(1), np.zeros(1)
    F.batch_norm(minidl.Tensor(np.array([[0.0], [2.0]])), mean, var, training=True, momentum=1.0)
    assert mean[0] == 1 and var[0] == 2


def test_eval_leaves_running_statistics_alone():
    mean, var = np.ones(2), np.full(2, 4.0)
    F.batch_norm(minidl.Tensor(RNG.standard_normal((3, 2))), mean, var)
    assert (mean == 1).all() and (var == 4).all()


@pytest.mark.parametrize("width", [1, 7, 300])
def test_blocks_of_rows_do_not_change_the_result(width, monkeypatch):
    x, w, b = (RNG.standard_normal(s) for s in ((23, width), width, width))
    results = []
    for block in (2**16, 2 * width):  # one block, and twelve with a short last one
        monkeypatch.setattr(layer_norm, "BLOCK_ELEMS", block)
        tensors = [minidl.Tensor(a, requires_grad=True) for a in (x, w, b)]
        y = F.layer_norm(tensors[0], width, *tensors[1:])
        y.backward(x[::-1].copy())
        results.append([y.numpy(), *(t.grad.array for t in tensors)])
    for one, many in zip(*results, strict=True):
        # float64: sums over rows, in another order
        np.testing.assert_allclose(one, many, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("fused", [True, False])
def test_fp16_statistics_are_fp32(fused):
    # the squares, 250,000, and the sum, 500 * 64, pass fp16's 65504 and 2048
    x = np.where(np.arange(64) % 2, 500, -500).astype(np.float16)[None]
    with minidl.use_fused(fused):
        y = F.layer_norm(minidl.Tensor(x), 64).numpy()
        z = F.rms_norm(minidl.Tensor(np.abs(x)), 64).numpy()
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, np.sign(x))
    np.testing.assert_array_equal(z, np.ones_like(z))


def test_errors_name_op_and_shapes():
    x = minidl.Tensor(np.ones((2, 6, 3)))
    with pytest.raises(ValueError, match=r"layer_norm: .*normalized_shape \(6,\).*\(2, 6, 3\)"):
        F.layer_norm(x, 6)
    with pytest.raises(ValueError, match=r"layer_norm: weight must .*\(3,\); got \(2,\)"):
        F.layer_norm(x, 3, minidl.Tensor(np.ones(2)))
    with pytest.raises(ValueError, match="group_norm: .* divisible by .*, 4; got 6 channels"):
        F.group_norm(x, 4)
    with pytest.raises(ValueError, match=r"batch_norm: weight must .*\(6,\).*got \(3,\)"):
        F.batch_norm(x, None, None, minidl.Tensor(np.ones(3)), training=True)
    with pytest.raises(ValueError, match="wants running_mean and running_var"):
        F.batch_norm(x, None, None)
    with pytest.raises(ValueError, match="more than one value in each channel"):
        F.batch_norm(minidl.Tensor(np.ones((1, 3))), None, None, training=True)
    with pytest.raises(TypeError, match="^rms_norm: wants floating numbers, got int64"):
        F.rms_norm(minidl.Tensor(np.ones((2, 3), int)), 3)
