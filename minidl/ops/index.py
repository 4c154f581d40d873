"""Indexing: pick elements; backward adds each gradient at the place its element came from.

    x = [a b c d]    x[[3, 1, 3]] = [d b d]    gradient of d: that of place 0 plus that of place 2

A repeated index *adds*. `gx[index] = gy`, or `+=`, would keep only one of the repeats: NumPy reads
once and writes once. Slices and bool masks never repeat: there `gx[index] = gy` is enough.
Test: tests/ops/test_index.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda.index_check import checked
from minidl.function import Function
from minidl.ops.dims import normalize_dims
from minidl.tensor import Tensor


def index_of_arrays(index):
    """An index as the array library takes it: tensors become arrays, also inside a tuple."""
    if isinstance(index, tuple):
        return tuple(i._data if isinstance(i, Tensor) else i for i in index)
    return index._data if isinstance(index, Tensor) else index


def within(x, index, op="x[index]"):
    """`index` for x, of a GPU, with its integer arrays checked there (cuda/index_check.py), and
    lists here: CuPy wraps what is out of range around in silence. A negative index counts from the
    end."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(_has_dtype(i) or isinstance(i, list) for i in parts):
        return index  # slices and numbers: CuPy looks at them itself
    places, dim = [], 0
    for i in parts:
        if isinstance(i, list):
            host = np.asarray(i)
            if host.dtype.kind in "iu" and host.size and dim < x.ndim:
                n = x.shape[dim]
                if not -n <= host.min() <= host.max() < n:
                    raise IndexError(f"{op}: indices from {host.min()} to {host.max()}, but "
                                     f"dimension {dim} of shape {x.shape} has {-n} to {n - 1}")
        elif _has_dtype(i) and i.dtype.kind in "iu" and dim < x.ndim:
            i = checked(op, i, x.shape[dim], low=-x.shape[dim])
        if i is Ellipsis:
            dim = x.ndim - sum(map(_n_dims, parts[len(places) + 1:]))
        else:
            dim += _n_dims(i)
        places.append(i)
    return tuple(places) if isinstance(index, tuple) else places[0]


def _has_dtype(part):
    return getattr(part, "dtype", None) is not None


def _n_dims(part):
    """How many dimensions of x a part of an index is about."""
    if part is None or part is Ellipsis or isinstance(part, bool):
        return 0
    if isinstance(part, list):
        part = np.asarray(part)
    return part.ndim if _has_dtype(part) and part.dtype == bool else 1


def scatter_add(xp, shape, index, g):
    """Zeros of `shape` plus g[k] added at index[k] for every k, repeats included; index as in
    x[index]. fp16 is summed, and returned, in fp32. np.add.at is quick only in one dimension (7
    times, NumPy 2.4), so the index is flattened."""
    size = math.prod(shape)
    positions = xp.arange(size).reshape(shape)[index]
    gx = xp.zeros(size, backend.accumulate_dtype(g.dtype))
    xp.add.at(gx, positions.reshape(-1), g.reshape(-1).astype(gx.dtype, copy=False))
    return gx.reshape(shape)


def _may_repeat(index):
    """Whether an element can be picked twice: only integer arrays and lists do that."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, list) or getattr(i, "ndim", 0) and i.dtype.kind in "iu" for i in parts)


class Getitem(Function):
    """x[index]: slices and integers give a view, integer and bool arrays a copy."""
    arithmetic = False

    def forward(self, x, index):
        if self.xp is not np:
            index = within(x, index)
        self.index, self.shape = index, x.shape
        return x[index]

    def backward(self, gy):
        if _may_repeat(self.index):
            return scatter_add(self.xp, self.shape, self.index, gy)
        gx = self.xp.zeros(self.shape, gy.dtype)
        gx[self.index] = gy
        return gx


class Gather(Function):
    """y[i, j, k] = x[i, index[i, j, k], k] for dim 1, and so on."""
    arithmetic = False

    def forward(self, x, index, dim):
        (dim,) = normalize_dims(dim, x.ndim, "gather") or (0,)
        if index.dtype.kind not in "iu" or index.ndim != x.ndim:
            raise ValueError(f"gather: wants an integer index of {x.ndim} dimensions, got "
                             f"{index.dtype} of shape {index.shape}")
        if any(n > m for i, (n, m) in enumerate(zip(index.shape, x.shape)) if i != dim):
            raise ValueError(f"gather: index of shape {index.shape} exceeds shape {x.shape} in a "
                             f"dimension other than {dim}")
        if self.xp is not np:
            index = checked("gather", index, x.shape[dim] if x.ndim else 1)
        self.shape, self.index = x.shape, along(self.xp, index, dim)
        return x[self.index]

    def backward(self, gy):
        return scatter_add(self.xp, self.shape, self.index, gy), None


class IndexSelect(Gather):
    """y[i, t, k] = x[i, index[t], k] for dim 1, and so on."""

    def forward(self, x, index, dim):
        if x.ndim == 0 or index.dtype.kind not in "iu" or index.ndim > 1:
            raise ValueError(
                "index_select: wants an input of at least 1 dimension and a 1-d integer index; got "
                f"shape {x.shape} and {index.dtype} of shape {index.shape}")
        (dim,) = normalize_dims(dim, x.ndim, "index_select")
        n = x.shape[dim]
        if self.xp is not np:
            index = checked("index_select", index, n)
        elif index.size and not 0 <= int(index.min()) <= int(index.max()) < n:
            raise IndexError(f"index_select: indices from {index.min()} to {index.max()}, but "
                             f"dimension {dim} of shape {x.shape} has 0 to {n - 1}")
        self.shape, self.index = x.shape, (slice(None),) * dim + (index.reshape(-1),)
        return x[self.index]


def along(xp, index, dim):
    """The tuple that picks index[i, j, k] along `dim` and i, j, k along the others."""
    grid = [xp.arange(n).reshape([-1 if i == d else 1 for i in range(index.ndim)])
            for d, n in enumerate(index.shape)]
    grid[dim:dim + 1] = [index] if index.ndim else []
    return tuple(grid)


class Triangle(Function):
    """Zero on one side of a diagonal of the last two dimensions."""
    arithmetic = False

    def forward(self, x, diagonal, name):
        self.diagonal, self.name = diagonal, name
        if x.ndim < 2:
            raise ValueError(f"{name}: wants at least 2 dimensions, got shape {x.shape}")
        return getattr(self.xp, name)(x, diagonal)

    def backward(self, gy):
        return getattr(self.xp, self.name)(gy, self.diagonal)


def getitem(input, index):
    """input[index] with ints, slices, None, ..., integer arrays or tensors, bool masks."""
    return Getitem.apply(input, index=index_of_arrays(index))


def gather(input, dim, index):
    """input's element at index[i, j, k] of `dim`, and at the other places of its own."""
    if not input.shape and index.shape == (1,):  # a 0-d tensor is a vector of one here
        return Gather.apply(input.reshape(1), index, dim=dim)
    return Gather.apply(input, index, dim=dim)


def index_select(input, dim, index):
    """The slices of `dim` at the places in the 1-d integer `index`, repeats included. Negative
    places are an error, as in PyTorch."""
    if not input.shape and index.shape == (1,):
        return IndexSelect.apply(input.reshape(1), index, dim=dim).reshape(())
    return IndexSelect.apply(input, index, dim=dim)


def tril(input, diagonal=0):
    """Zero above the diagonal."""
    return Triangle.apply(input, diagonal=diagonal, name="tril")


def triu(input, diagonal=0):
    """Zero below the diagonal."""
    return Triangle.apply(input, diagonal=diagonal, name="triu")
