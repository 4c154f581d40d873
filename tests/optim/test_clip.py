"""Clipping keeps the direction and bounds the length, as PyTorch does."""

import math

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from tests.devices import host, put


def parameters(seed=0, dtype=np.float64, device="cpu"):
    rng = np.random.default_rng(seed)
    params = [nn.Parameter(put(np.zeros(s, dtype), device)) for s in [(3, 4), (5,), (0,), (2,)]]
    for p in params[:-1]:  # the last one has no gradient
        p.grad = put(rng.standard_normal(p.shape).astype(dtype), device)
    return params


@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.0, math.inf])
@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_norm_and_scaled_gradients_equal_pytorchs(norm_type, max_norm, device):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    ours = parameters(device=device)
    if norm_type == math.inf:  # PyTorch refuses the largest of no elements
        ours = [p for p in ours if p.numel()]
    theirs = [torch.nn.Parameter(torch.tensor(host(p))) for p in ours]
    for p, q in zip(ours, theirs):
        q.grad = None if p.grad is None else torch.tensor(host(p.grad))
    a = optim.clip_grad_norm_(ours, max_norm, norm_type)
    b = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    # float64: a sum of 17 terms in another order, and a root
    assert float(a) == pytest.approx(b.item(), rel=1e-12)
    for p, q in zip(ours[:-1], theirs):
        np.testing.assert_allclose(host(p.grad), q.grad.numpy(), rtol=1e-12)
    assert ours[-1].grad is None


@pytest.mark.parametrize("fused", [True, False])
def test_half_precision_gradients_are_squared_in_single(fused, device):
    p = nn.Parameter(put(np.zeros(4, np.float16), device))
    p.grad = put(np.full(4, 300, np.float16), device)  # 300^2 is above 65504
    with minidl.use_fused(fused):
        assert optim.grad_norm([p]) == 600


def test_a_non_finite_norm_is_an_error_on_request():
    params = parameters()
    params[0].grad[0, 0] = np.nan
    with pytest.raises(RuntimeError, match="norm is nan"):
        optim.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert math.isnan(optim.clip_grad_norm_(params, 1.0))
    assert np.isnan(params[1].grad.array).all()


def test_value_clipping_clamps_each_element(device):
    params = parameters(device=device)
    before = host(params[0].grad).copy()
    optim.clip_grad_value_(params, 0.3)
    np.testing.assert_array_equal(host(params[0].grad), before.clip(-0.3, 0.3))


def test_a_negative_bound_is_an_error():
    with pytest.raises(ValueError, match="clip_value is -0.3, want 0 or more"):
        optim.clip_grad_value_(parameters(), -0.3)


def test_a_generator_that_was_read_before_is_refused():
    p = nn.Parameter(np.ones(2, np.float32))
    p.grad = np.full(2, 5.0, np.float32)
    parameters = (q for q in [p])
    assert optim.clip_grad_norm_(parameters, 1.0) == pytest.approx(50**0.5)
    with pytest.raises(ValueError, match="read before, so it is empty. Pass a"):
        optim.clip_grad_norm_(parameters, 1.0)
    assert optim.clip_grad_norm_([], 1.0) == 0.0


@pytest.mark.parametrize("clip", [optim.clip_grad_norm_, optim.clip_grad_value_])
def test_a_module_in_place_of_its_parameters_is_named(clip):
    with pytest.raises(TypeError, match=r"wants a module's \.parameters\(\); got the module"):
        clip(nn.Linear(2, 2), 1.0)
