"""`grad` returns gradients as values. `gradcheck` compares a backward with central differences.

gradcheck computes in float64, with a random cotangent c (one number for each output element):

    d/dx <c, f(x)>  =  ( <c, f(x + h)> - <c, f(x - h)> ) / 2h  +  O(h^2) + O(eps/h)

The two errors balance at h = eps^(1/3), 6e-6 in float64. If c were all ones, only the sum of the
outputs would be checked. The outputs of a softmax always sum to 1. So the check would accept a
softmax whose backward returns zeros.
Test: tests/test_gradcheck.py   Tutorial: tutorials/01_autograd.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from minidl import random
from minidl.backward import refuse_create_graph, walk
from minidl.mode import no_grad
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

STEP = float(np.finfo(np.float64).eps) ** (1 / 3)


def grad(outputs: Tensor | Sequence[Tensor], inputs: Tensor | Sequence[Tensor],
         grad_outputs: Any = None, retain_graph: bool = False,
         create_graph: bool = False) -> tuple[Tensor | None, ...]:
    """Returns d(sum of outputs)/d(input) for each leaf in `inputs`, as a tuple of Tensors. An entry
    is None if no path leads to the leaf. Does not change the `grad` of any leaf, and calls no
    on_grad_ready hook. This is `torch.autograd.grad`, for first derivatives only. Raises ValueError
    if an input is not a leaf that requires a gradient.

    grad_outputs: for each output an array of weights, with the shape of the output. None means 1,
    and is allowed only for an output of one element."""
    refuse_create_graph(create_graph)
    outputs, inputs = (x if isinstance(x, (list, tuple)) else [x] for x in (outputs, inputs))
    if not isinstance(grad_outputs, (list, tuple)):
        grad_outputs = [grad_outputs] * len(outputs)
    for x in inputs:
        if not (x.is_leaf and x.requires_grad):
            raise ValueError("grad wants inputs that are leaves and require a gradient; got "
                             + (f"a result of {x.grad_fn}. For results call retain_grad() and "
                                "backward()" if x.grad_fn else "a leaf with requires_grad=False"))
    found = {}
    walk(outputs, grad_outputs, retain_graph, found.__setitem__)
    return tuple(Tensor(found[x]) if x in found else None for x in inputs)


class GradcheckError(AssertionError):
    """A gradient disagrees with central differences."""


def numeric_gradient(fn, inputs, index, cotangents, h=STEP):
    """Returns d<c, fn(*inputs)> / d inputs[index] by central differences: an array of the shape of
    this input. cotangents: c, one array for each output. Changes the elements of the input one by
    one, and restores each of them. Raises ValueError if the input is not contiguous."""
    x = inputs[index].array
    flat = x.reshape(-1)
    if x.size and not np.shares_memory(flat, x):
        raise ValueError("numeric_gradient wants contiguous inputs, because it changes their "
                         "elements in place; got an array that is not contiguous")
    gradient = np.empty(flat.shape)
    with no_grad():
        for i in range(flat.size):
            before = flat[i].item()
            flat[i] = before + h
            above = _dot(cotangents, fn(*inputs))
            flat[i] = before - h
            below = _dot(cotangents, fn(*inputs))
            flat[i] = before
            gradient[i] = (above - below) / (2 * h)
    return gradient.reshape(x.shape)


def gradcheck(fn: Callable[..., Any], *inputs: Any, atol: float = 1e-8, rtol: float = 1e-6,
              h: float = STEP, seed: int = 0) -> float:
    """Compares the backward of `fn` with central differences, for every element of every float64
    input. Returns the largest |analytic - numeric| / (1 + |numeric|).

    inputs: arrays or Tensors, at least one in float64. All other inputs are passed to fn unchanged.
    Raises GradcheckError if |analytic - numeric| > atol + rtol * |numeric| for an element. The
    error names the first such element."""
    checked = [k for k, x in enumerate(inputs) if _is_float64(x)]
    if not checked:
        given = ", ".join(str(getattr(x, "dtype", type(x).__name__)) for x in inputs)
        raise ValueError("gradcheck wants a float64 array among its inputs, got "
                         f"{given or 'none'}; cast with .astype(np.float64)")
    inputs = [Tensor(np.array(x, order="C"), True) if _is_float64(x) else x for x in inputs]
    outputs = _tuple(fn(*inputs))
    generator = random.Generator(seed)
    cotangents = [generator.normal(y.shape, dtype=np.float64) for y in outputs]
    reached = [(y, c) for y, c in zip(outputs, cotangents) if y.requires_grad]
    gradients = grad([y for y, _ in reached], [inputs[k] for k in checked], [c for _, c in reached])
    worst = 0.0
    for k, gradient in zip(checked, gradients):
        numeric = numeric_gradient(fn, inputs, k, cotangents, h)
        analytic = np.zeros(inputs[k].shape) if gradient is None else np.asarray(gradient)
        error = np.abs(analytic - numeric)
        bad = ~(error <= atol + rtol * np.abs(numeric))  # also true for nan
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            raise GradcheckError(
                f"input {k}, element {at} of shape {numeric.shape}: backward says "
                f"{analytic[at]:.10g}, central differences say {numeric[at]:.10g} "
                f"({bad.sum()} of {bad.size} elements differ)")
        if error.size:
            worst = max(worst, float((error / (1 + np.abs(numeric))).max()))
    return worst


def _is_float64(x):
    return getattr(x, "dtype", None) == np.float64


def _tuple(y):
    return y if isinstance(y, tuple) else (y,)


def _dot(cotangents, outputs):
    return sum(float((c * y.array).sum()) for c, y in zip(cotangents, _tuple(outputs)))
