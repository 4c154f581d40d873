"""ONNX's operators that move elements, and operators on shapes.

Test: tests/infer/onnx/test_every_operator.py, test_operators.py
"""

import math

import numpy as np

from minidl.infer.onnx.operator import Known, Raw, Refused, from_arrays, ints, m, operators
from minidl.nn import functional as F
from minidl.ops.index import Getitem
from minidl.tensor import Tensor

# ---- from shapes ----


def Constant(*, value=None, value_float=None, value_floats=None, value_int=None, value_ints=None):
    for x, kind in ((value, None), (value_float, "f4"), (value_floats, "f4"), (value_int, "i8"),
                    (value_ints, "i8")):
        if x is not None:
            return np.asarray(x, kind)
    raise Refused("want a constant of one of these kinds: a tensor, a float, an int, or a list of "
                  "floats or ints")


def Range(start: Known, limit: Known, delta: Known):
    n = max(math.ceil((limit.item() - start.item()) / delta.item()), 0)
    return (start + np.arange(n) * delta).astype(start.dtype)


def Reshape(x, shape: Known, *, allowzero=0):
    return x.reshape([n or (0 if allowzero else x.shape[i]) for i, n in enumerate(ints(shape))])


# ---- parts ----


def Split(x, split: Known = None, *, axis=0, num_outputs=None, _n):
    n, parts = x.shape[axis], num_outputs or _n
    if parts != _n and split is None:
        raise Refused(f"num_outputs is {parts}, but the operator has {_n} results")
    size = -(-n // parts)
    return m.split(x, ints(split) if split is not None else [
        min(size, n - i * size) for i in range(parts)], axis)


def Slice(x, starts: Known, ends: Known, axes: Known = None, steps: Known = None):
    axes = range(starts.size) if axes is None else ints(axes)
    steps = [1] * starts.size if steps is None else ints(steps)
    index = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, ints(starts), ints(ends), steps, strict=True):
        n = x.shape[axis]
        start, end = start + n * (start < 0), end + n * (end < 0)
        if step > 0:
            index[axis] = slice(max(start, 0), max(end, 0), step)
        elif n:  # unlike in NumPy, a start before the first element means the first element
            index[axis] = slice(min(max(start, 0), n - 1), end if end >= 0 else None, step)
    if isinstance(x, Tensor):
        return Getitem.apply(x, index=tuple(index))  # because x[...] refuses negative steps
    return x[tuple(index)]


def Pad(x, pads: Known, constant_value=None, axes: Known = None, *, mode="constant", value=0.0):
    axes = range(x.ndim) if axes is None else [a % x.ndim for a in ints(axes)]
    widths, pads = [(0, 0)] * x.ndim, ints(pads)
    for i, axis in enumerate(axes):
        widths[axis] = pads[i], pads[i + len(axes)]
    if mode == "constant" and constant_value is None and x.dtype.kind == "f":
        return F.pad(x, [n for pair in reversed(widths) for n in pair], value=value)
    return _pad(x, constant_value, widths=widths, mode=mode)


@from_arrays
def _pad(x, value, *, widths, mode):
    x = x[tuple(slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, widths))]
    widths = [(max(b, 0), max(a, 0)) for b, a in widths]
    if mode == "constant":
        return np.pad(x, widths, constant_values=0 if value is None else value.item())
    return np.pad(x, widths, mode={"reflect": "reflect", "edge": "edge", "wrap": "wrap"}[mode])


def DepthToSpace(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        x = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        x = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return x.reshape(n, c // b**2, h * b, w * b)


def SpaceToDepth(x, *, blocksize, mode="DCR"):
    n, c, h, w = x.shape
    b = blocksize
    x = x.reshape(n, c, h // b, b, w // b, b)
    x = x.permute(0, 3, 5, 1, 2, 4) if mode == "DCR" else x.permute(0, 1, 3, 5, 2, 4)
    return x.reshape(n, c * b * b, h // b, w // b)


# ---- by index ----


def Gather(x, index: Raw, *, axis=0):
    """If the index is a single constant number, indexes x with this number along the axis. If x is
    a matrix and the indices of its rows are computed in the graph, uses F.embedding. Otherwise uses
    NumPy's take."""
    axis %= x.ndim
    if isinstance(index, np.ndarray) and index.ndim == 0:
        return x[(*[slice(None)] * axis, index.item())]
    if axis == 0 and x.ndim == 2 and x.dtype.kind == "f" and not isinstance(index, np.ndarray) and (
            index.dtype == np.int64):
        return F.embedding(index, x)
    return gather(x, index, axis=axis)


@from_arrays
def gather(x, index, *, axis):
    return x.take(index, axis)


@from_arrays
def GatherElements(x, index, *, axis=0):
    at = list(np.indices(index.shape, sparse=True))
    at[axis] = index
    return x[tuple(at)]


@from_arrays
def GatherND(x, index, *, batch_dims=0):
    return x[_places(x.shape, index, batch_dims)]


def _places(shape, index, batch_dims=0):
    """Returns a tuple of index arrays, for GatherND. If x is an array of this shape, x[the tuple]
    is the result of GatherND. Each vector index[..., :] holds the indices of one place in x. The
    first batch_dims dimensions of x and of `index` count the samples of a batch. The places in a
    sample of `index` are places in the same sample of x."""
    batch = np.ix_(*map(np.arange, index.shape[:batch_dims])) if batch_dims else ()
    batch = [b.reshape(*b.shape[:batch_dims], *[1] * (index.ndim - 1 - batch_dims)) for b in batch]
    return (*batch, *np.moveaxis(index, -1, 0))


REDUCE = {"none": None, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _written(x, at, updates, reduction):
    """Returns a copy of x with the updates written to x[at]. With reduction "none" an update
    replaces the element. Otherwise the function in REDUCE combines the element and the
    update: for example "add" adds the update to the element."""
    y = x.copy()
    if reduction == "none":
        y[at] = updates
    else:
        REDUCE[reduction].at(y, at, updates)
    return y


@from_arrays
def ScatterElements(x, index, updates, *, axis=0, reduction="none"):
    at = list(np.indices(index.shape, sparse=True))
    at[axis] = index
    return _written(x, tuple(at), updates, reduction)


@from_arrays
def ScatterND(x, index, updates, *, reduction="none"):
    return _written(x, _places(x.shape, index), updates, reduction)


@from_arrays
def OneHot(index, depth, values, *, axis=-1):
    depth = int(depth.item())
    index = index.astype(np.int64)
    axis = axis % (index.ndim + 1)
    index = np.expand_dims(np.where(index < 0, index + depth, index), axis)
    grid = np.arange(depth).reshape([-1 if d == axis else 1 for d in range(index.ndim)])
    return np.where(grid == index, values[1], values[0])


SHORT = {
    "Concat": lambda *xs, axis: m.cat(xs, axis) if all(0 not in x.shape for x in xs) else (
        _concat(*xs, axis=axis)),
    "Flatten": lambda x, *, axis=1: x.reshape(
        math.prod(x.shape[:axis] if axis else ()), math.prod(x.shape[axis:])),
    "Transpose": lambda x, *, perm=None: x.permute(perm or tuple(reversed(range(x.ndim))))}


def Shape(x: Raw, *, start=0, end=None):
    return np.array(x.shape[start:end], np.int64)


def Size(x: Raw):
    return np.array(math.prod(x.shape), np.int64)


def ConstantOfShape(shape: Known, *, value=None):
    return np.zeros(ints(shape), np.float32) if value is None else np.full(
        ints(shape), value.item(), value.dtype)


def Squeeze(x, axes: Known = None):
    return x.squeeze() if axes is None else x.squeeze(ints(axes))


def Unsqueeze(x, axes: Known):
    new = {a % (x.ndim + axes.size) for a in ints(axes)}
    sizes = iter(x.shape)
    return x.reshape([1 if i in new else next(sizes) for i in range(x.ndim + axes.size)])


def Expand(x, shape: Known):
    return x.broadcast_to(np.broadcast_shapes(x.shape, ints(shape)))


def Tile(x, repeats: Known):
    return x.repeat(ints(repeats))


def Trilu(x, k: Known = None, *, upper=1):
    return (m.triu if upper else m.tril)(x, 0 if k is None else k.item())


def NonZero(x: Known):
    return np.array(np.nonzero(np.atleast_1d(x)), np.int64)


@from_arrays
def _concat(*xs, axis):
    return np.concatenate(xs, axis)


TABLE = {**operators(globals()), **SHORT, "Scatter": ScatterElements}
