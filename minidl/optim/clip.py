"""Gradient clipping limits the length of the vector of all gradients, and keeps its direction.

The plain form: minidl/plain/optimizers.py. This file adds other norms, and gradients that are
divided among ranks. On a GPU the host does not wait for the norm.

Clip after all gradients are summed over micro-batches and ranks, and after unscaling.
Source: Pascanu, Mikolov, Bengio 2012 (arXiv 1211.5063). The 1e-6 in the divisor is PyTorch's.
Test: tests/optim/test_clip.py   Tutorial: tutorials/31_optimizers.py
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.backend import accumulate_dtype
from minidl.cuda import dispatch, unscale_check
from minidl.cuda.grad_norm import square_sum_of, two_norm
from minidl.optim import over_ranks
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable


def grad_norm(parameters: Tensor | Iterable[Tensor], norm_type: float = 2.0) -> float:
    """Returns the norm of the vector of all gradients, a float. Returns 0.0 if no parameter has a
    gradient. fp16 and bf16 gradients are squared and summed in fp32.

    If a parameter is a shard (ZeRO, tensor parallelism, divided experts), the result is the norm of
    the gradients of all ranks together. Then all ranks must call this function (over_ranks.py).
    Raises ValueError for shards if norm_type is not 2."""
    parameters = _list(parameters)
    grads = [p.grad.array for p in parameters if p.grad is not None]
    if over_ranks.groups_of(parameters):
        if norm_type != 2:
            raise ValueError("grad_norm wants norm_type 2 if several ranks hold shards; "
                             f"got norm_type {norm_type}")
        return math.sqrt(over_ranks.square_sum(parameters))
    if norm_type == 2:
        return two_norm(grads)
    if norm_type == math.inf:
        return max((float(abs(g).max()) for g in grads if g.size), default=0.0)
    wide = (g.astype(accumulate_dtype(g.dtype), copy=False) for g in grads)
    return sum(float((abs(g) ** norm_type).sum()) for g in wide) ** (1 / norm_type)


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0,
                    error_if_nonfinite: bool = False) -> Tensor:
    """Scales the gradients in place so that their norm is at most max_norm. Returns their norm
    before scaling, a Tensor without dimensions. If the gradients are on a GPU, the norm is on the
    GPU, too, and the host does not wait for it. In three cases the host waits, and the norm is on
    the host: if ranks hold shards, if norm_type is not 2, and if error_if_nonfinite is True.

    If the norm is nan, all gradients become nan. If the norm is inf, each element becomes 0 or nan.
    With error_if_nonfinite, such a norm raises RuntimeError."""
    parameters = _list(parameters)
    grads = [p.grad.array for p in parameters if p.grad is not None]
    on_host = isinstance(grads[0], np.ndarray) if grads else True
    is_here = not over_ranks.groups_of(parameters)  # True if no other rank holds shards
    if not on_host and norm_type == 2 and not error_if_nonfinite and is_here:
        return _clip_on_device(grads, max_norm)
    total = grad_norm(parameters, norm_type)
    if error_if_nonfinite and not math.isfinite(total):
        raise RuntimeError(f"the gradient norm is {total}, so the gradients cannot be clipped. "
                           "Look for the first layer with a gradient that is not finite")
    scale_to(parameters, total, max_norm)
    return norm_tensor(total, parameters)


def norm_tensor(total, parameters):
    """Returns the norm `total` as a float32 Tensor, or as a float64 Tensor if a gradient is
    float64. A rank without gradients does not know the dtype of the gradients of other ranks. So it
    returns a float64 Tensor if the norm is not 0."""
    dtypes = {p.grad.dtype for p in parameters if p.grad is not None}
    narrow = np.dtype(np.float64) not in dtypes and (dtypes or total == 0)
    return Tensor(np.array(total, np.float32 if narrow else np.float64))


def _clip_on_device(grads, max_norm):
    """Clips gradient arrays on a GPU. Returns their norm before scaling, a Tensor on the GPU."""
    square_sum = square_sum_of(grads)
    total = square_sum[0] ** 0.5
    xp = backend.library_of(total)
    factor = xp.minimum(max_norm / (total + 1e-6), 1.0)  # if total is nan, factor is nan
    if all(g.flags.c_contiguous for g in grads) and dispatch.usable(*grads):
        unscale_check.unscale_check(grads, 1.0, factor.astype(np.float32).reshape(1))
    else:
        for g in grads:
            g *= factor.astype(g.dtype)
    return Tensor(total)


def clip_factor(norm, max_norm):
    """Returns a factor for the gradients. Their norm times this factor is at most max_norm. The
    factor is a number up to 1, or nan if the norm is nan."""
    if math.isnan(norm):
        return math.nan
    return min(1.0, max_norm / (norm + 1e-6))


def scale_to(parameters, total, max_norm):
    """Scales gradients in place, so that their norm is at most max_norm. total: their norm before
    scaling."""
    scale = clip_factor(total, max_norm)
    if scale != 1.0:
        for p in parameters:
            if p.grad is not None:
                p.grad.array *= scale


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamps every element of every gradient to [-clip_value, clip_value], in place. Raises
    ValueError if clip_value is negative."""
    if not clip_value >= 0:
        raise ValueError(f"clip_grad_value_: clip_value is {clip_value}, want 0 or more")
    for p in _list(parameters):
        if p.grad is not None:
            grad = p.grad.array
            p._xp.clip(grad, -clip_value, clip_value, out=grad)


def _list(parameters):
    """Returns a list of the parameters. Raises ValueError for a generator that was read before:
    such a generator is empty, so it has no gradients to clip."""
    if hasattr(parameters, "parameters"):
        raise TypeError("clipping wants a module's .parameters(); got the module")
    if inspect.isgenerator(parameters) and inspect.getgeneratorstate(
            parameters) == inspect.GEN_CLOSED:
        raise ValueError("this generator of parameters was read before, so it is empty. Pass a "
                         "list: list(model.parameters())")
    return [parameters] if isinstance(parameters, Tensor) else list(parameters)
