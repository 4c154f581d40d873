"""ONNX's operators that reduce many numbers to one, or sort numbers.

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

import numpy as np

from minidl.infer.onnx.elements import cast
from minidl.infer.onnx.operator import Known, from_arrays, ints, m, operators
from minidl.nn import functional as F


def _reduction(of):
    """Returns an operator such as ReduceSum. of: a function of (x, dims, keepdim), such as
    m.sum."""
    def operator(x, axes: Known = None, *, keepdims=1, noop_with_empty_axes=0):
        if axes is None or not axes.size:
            if noop_with_empty_axes:
                return of(x.unsqueeze(0), (0,), False)
            axes = np.arange(x.ndim)
        return cast(of(x, ints(axes), bool(keepdims)), x.dtype)
    return operator


@from_arrays
def _extreme(x, *, axis, keepdims, least):
    """Returns the minimum along the axis if `least` is True, else the maximum. The maximum
    of no elements is -inf for floats, and the smallest number of the dtype for integers. The
    minimum of no elements is inf for floats, and the largest number of the dtype for integers."""
    if x.dtype == bool:
        ends = True, False
    else:
        info = np.iinfo(x.dtype) if x.dtype.kind in "iu" else None
        ends = (info.max, info.min) if info else (np.inf, -np.inf)
    function, initial = (np.min, ends[0]) if least else (np.max, ends[1])
    return np.asarray(function(x, axis, keepdims=keepdims, initial=initial))


@from_arrays
def _whole_mean(x, *, axis, keepdims):
    return x.mean(axis, keepdims=keepdims).astype(x.dtype)


REDUCTIONS = {f"Reduce{name}": _reduction(of) for name, of in {  # functions of (x, axes, keepdim)
    "Sum": m.sum, "Prod": m.prod,
    "L1": lambda x, *a: m.sum(m.abs(x), *a), "L2": lambda x, *a: m.sqrt(m.sum(x * x, *a)),
    "LogSum": lambda x, *a: m.log(m.sum(x, *a)), "SumSquare": lambda x, *a: m.sum(x * x, *a),
    "LogSumExp": lambda x, dim, keep: m.logsumexp(x, dim, keep) if dim else x,
    "Max": lambda x, dim, keep: _extreme(x, axis=dim, keepdims=keep, least=False),
    "Min": lambda x, dim, keep: _extreme(x, axis=dim, keepdims=keep, least=True),
    "Mean": lambda x, dim, keep: m.mean(x, dim, keep) if x.dtype.kind == "f" else _whole_mean(
        x, axis=dim, keepdims=keep)}.items()}


def _argument(of):
    """Returns the operator ArgMax or ArgMin. of: np.argmax or np.argmin."""
    def operator(x, *, axis=0, keepdims=1, select_last_index=0):
        at = of(np.flip(x, axis) if select_last_index else x, axis)
        at = x.shape[axis] - 1 - at if select_last_index else at
        return np.expand_dims(at, axis) if keepdims else at
    return operator


def TopK(x, k: Known, *, axis=-1, largest=1, sorted=1):
    return tuple(m.topk(x, int(k.item()), axis, bool(largest)))


def _running(of, first):
    """Returns the operator CumSum or CumProd. of: np.cumsum or np.cumprod. first: the first element
    of an exclusive sum or product."""
    def operator(x, axis: Known, *, exclusive=0, reverse=0):
        axis = axis.item()
        x = np.flip(x, axis) if reverse else x
        if exclusive:
            x = np.insert(x, 0, first, axis).take(range(x.shape[axis]), axis)
        y = of(x, axis, dtype=x.dtype)
        return np.flip(y, axis) if reverse else y
    return operator


def LpNormalization(x, *, axis=-1, p=2):
    size = m.sum(m.abs(x), axis, True) if p == 1 else m.sqrt(m.sum(x * x, axis, True))
    return m.where(size == 0, size * 0, x / size)


@from_arrays
def NegativeLogLikelihoodLoss(x, target, weight=None, *, ignore_index=None, reduction="mean"):
    counted = np.ones(target.shape, x.dtype) if ignore_index is None else (
        target != ignore_index).astype(x.dtype)
    at = np.where(counted, target, 0)
    scale = counted if weight is None else counted * weight[at]
    loss = -np.take_along_axis(x, np.expand_dims(at, 1), 1).squeeze(1) * scale
    if reduction == "none":
        return loss
    return np.asarray(loss.sum() / (scale.sum() if reduction == "mean" else 1), x.dtype)


def SoftmaxCrossEntropyLoss(x, target, weight=None, *, ignore_index=None, reduction="mean"):
    p = F.log_softmax(x, 1)
    return NegativeLogLikelihoodLoss(p, target, weight, reduction=reduction, **(
        {} if ignore_index is None else {"ignore_index": ignore_index})), p


ORDERS = {name: from_arrays(f, name) for name, f in {
    "ArgMax": _argument(np.argmax), "ArgMin": _argument(np.argmin),
    "CumSum": _running(np.cumsum, 0), "CumProd": _running(np.cumprod, 1)}.items()}
TABLE = {**REDUCTIONS, **ORDERS, "Einsum": lambda *xs, equation: m.einsum(equation, *xs),
         **operators(globals())}
