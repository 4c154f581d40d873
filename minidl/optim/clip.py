"""Gradient clipping: keep the direction, bound the length.

    g *= min(1, max_norm / (|g| + 1e-6)),   |g| over all parameters together

Clip after all gradients are summed over micro-batches and ranks, and after unscaling.
Source: Pascanu, Mikolov, Bengio 2012 (arXiv 1211.5063); the 1e-6 is PyTorch's.
Test: tests/optim/test_clip.py
"""

import math

from minidl.backend import accumulate_dtype
from minidl.fused import norm
from minidl.tensor import Tensor


def grad_norm(parameters, norm_type=2.0):
    """The norm of all gradients as one vector, a float; 0.0 if there is none. fp16 and
    bf16 gradients are squared and summed in fp32."""
    grads = [p.grad for p in _list(parameters) if p.grad is not None]
    if norm_type == 2:
        return norm.two_norm(grads)
    if norm_type == math.inf:
        return max((float(abs(g).max()) for g in grads if g.size), default=0.0)
    wide = (g.astype(accumulate_dtype(g.dtype), copy=False) for g in grads)
    return sum(float((abs(g) ** norm_type).sum()) for g in wide) ** (1 / norm_type)


def clip_grad_norm_(parameters, max_norm, norm_type=2.0, error_if_nonfinite=False):
    """Scale the gradients in place so that their norm is at most max_norm; returns their norm from
    before. A non-finite norm makes every gradient non-finite, or is an error if asked for."""
    parameters = _list(parameters)
    total = grad_norm(parameters, norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(f"the gradient norm is {total}, so it cannot be clipped; look for the "
                           "first layer with a non-finite gradient")
    scale_to(parameters, total, max_norm)
    return total


def scale_to(parameters, total, max_norm):
    """Scale the gradients, whose common norm is `total`, so that it is at most max_norm."""
    scale = min(1.0, max_norm / (total + 1e-6)) if not math.isnan(total) else math.nan
    if scale != 1.0:
        for p in parameters:
            if p.grad is not None:
                p.grad *= scale


def clip_grad_value_(parameters, clip_value):
    """Clamp every element of every gradient to [-clip_value, clip_value], in place."""
    if not clip_value >= 0:
        raise ValueError(f"clip_grad_value_: clip_value is {clip_value}, want 0 or more")
    for p in _list(parameters):
        if p.grad is not None:
            p._xp.clip(p.grad, -clip_value, clip_value, out=p.grad)


def _list(parameters):
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)
