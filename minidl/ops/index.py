"""Indexing: pick elements; backward adds each gradient at the place its element came from.

    x = [a b c d]    x[[3, 1, 3]] = [d b d]    gradient of d: that of place 0 plus that of place 2

A repeated index *adds*. `gx[index] = gy`, or `+=`, would keep only one of the repeats: NumPy reads
once and writes once. Slices and bool masks never repeat: there `gx[index] = gy` is enough.

The order of the result's dimensions is PyTorch's. NumPy's is another one where numbers or None are
among the arrays, so an index is used in two steps: see `steps`.
Test: tests/ops/test_index.py, test_index_order.py
"""

import math

import numpy as np

from minidl import backend
from minidl.cuda.index_check import checked
from minidl.function import Function
from minidl.ops.dims import normalize_dims
from minidl.saved import note
from minidl.tensor import Tensor


def parts_of(x, index, op="getitem"):
    """Returns the index, as a user writes it, as a tuple of int, slice, None, Ellipsis and arrays:
    of integers, or of bool, which are masks. ValueError and IndexError where PyTorch has them, and
    where it is about to change the meaning: bytes, and a list of lists without a tuple."""
    if isinstance(index, tuple):
        return tuple([_part(x, i, op) for i in index])
    if isinstance(index, list) and any(
            i is None or i is Ellipsis or isinstance(i, (list, tuple, slice, Tensor, np.ndarray))
            for i in index):
        raise IndexError(f"{op}: a list of lists, slices or tensors is no clear index of shape "
                         f"{tuple(x.shape)}: write x[a, b] for one index for each dimension, "
                         "x[minidl.tensor(list)] for one array of indices")
    return (_part(x, index, op),)


def _part(x, i, op):
    """Returns one part of an index: what NumPy takes, a bool and a 0-d mask as a 0-d array."""
    if type(i) is int or i is None or i is Ellipsis:
        return i
    if isinstance(i, slice):
        if i.step is not None and not i.step > 0:
            raise ValueError(f"{op}: wants a step of 1 or more, got {i.step}; minidl.flip(x, "
                             "[dim]) turns the order around")
        return i
    array = i.array if isinstance(i, Tensor) else _array(i)
    dtype = getattr(array, "dtype", None)
    if dtype is None and hasattr(i, "__index__"):
        return i.__index__()
    if dtype is None or isinstance(i, np.bool_):
        raise IndexError(f"{op}: an index of shape {tuple(x.shape)} is a number, a slice, None, "
                         "..., or "
                         "integers or bools in a list, an array or a tensor; got "
                         f"{type(i).__name__}")
    kind, size = dtype.kind, dtype.itemsize
    if kind == "u" and size == 1:
        raise IndexError(f"{op}: an index of uint8 into shape {tuple(x.shape)} could be a mask or "
                         "places; .bool() makes a mask, .long() places")
    if kind not in "biu" or isinstance(i, Tensor) and kind != "b" and (kind, size) not in (
            ("i", 8), ("i", 4)):
        raise IndexError(f"{op}: an index of shape {tuple(x.shape)} is a tensor of int64, int32 "
                         "or bool, "
                         f"or an array of integers or bools; got {dtype}")
    return int(array) if not array.ndim and kind != "b" else array


def _array(i):
    """Returns the array of a part of an index that is no Tensor; i itself if it is none. A copy:
    backward reads it, and the user may have changed it by then."""
    if isinstance(i, (list, tuple, range)):
        i = np.asarray(_numbers(i))
    array = np.array(i) if isinstance(i, (bool, np.ndarray)) else backend.plain_array(i)
    if isinstance(array, np.ndarray) and array.size == 0 and array.dtype.kind == "f":
        return array.astype(np.int64)  # [] is a list of integers
    return array


def _numbers(nested):
    """Returns a nested list of numbers; the tensors in it become lists."""
    if isinstance(nested, (list, tuple, range)):
        return [_numbers(inner) for inner in nested]
    return nested.tolist() if hasattr(nested, "tolist") else nested


def arrays_kept(index, parts):
    """Returns the Tensors of an index whose arrays backward will read."""
    tensors = index if isinstance(index, tuple) else (index,)
    return [i for i, part in zip(tensors, parts) if isinstance(i, Tensor) and i.array is part]


def steps(x, parts, op="x[index]"):
    """Returns one or two indices to be used one after the other: x[index] = x[first][second].

        x[0, :, [2, 1], None]      first (0, :, :, None)     a view: numbers, slices, None
                                   second (:, [2, 1], :)     arrays, and nothing but slices

    NumPy takes a number beside an array for an array, too, and an Ellipsis for a dimension between
    two arrays, and puts their dimension in front. PyTorch looks at numbers, slices and None first.
    In the second step both agree: the dimensions of arrays that are neighbours stay in their place,
    others come in front.
    """
    arrays = [i for i in parts if hasattr(i, "dtype")]
    if not arrays:
        if Ellipsis not in parts:
            parts = (*parts, ...)  # a view of no dimensions, not a number
        return (parts,)
    n_left = x.ndim - sum(map(_n_dims, parts))
    if n_left < 0:
        raise IndexError(f"{op}: too many indices for shape {x.shape}")
    if sum(i is Ellipsis for i in parts) > 1:
        raise IndexError(f"{op}: more than one Ellipsis")
    first, second, dim, is_view = [], [], 0, False  # dim: of x
    for i in parts:
        if i is Ellipsis:
            first += [slice(None)] * n_left
            second += [slice(None)] * n_left
            dim += n_left
        elif not hasattr(i, "dtype"):
            first.append(i)
            second += [] if isinstance(i, int) else [slice(None)]
            dim += i is not None
            is_view = is_view or i != slice(None)
        else:
            n = _n_dims(i)
            if i.ndim == 0:  # True or False: a new dimension of one element or of none
                first.append(None)
                i = i.reshape(1)
                is_view = True
            first += [slice(None)] * n
            places = _placed(x, i, dim, n, op)
            is_one_of_several = len(arrays) > 1 and places.dtype == bool
            second += places.nonzero() if is_one_of_several else [places]
            dim += n
    return (tuple(first), tuple(second)) if is_view else (tuple(second),)


def _placed(x, i, dim, n, op):
    """Returns an array of an index into the n dimensions from `dim` on, checked, where x lies. The
    range of integers is checked by NumPy for itself, for a GPU here."""
    if n and i.dtype == bool and i.shape != x.shape[dim:dim + n]:
        raise IndexError(f"{op}: a mask of shape {i.shape} at dimension {dim} of shape {x.shape}")
    if isinstance(x, np.ndarray):
        if not isinstance(i, np.ndarray):
            raise IndexError(f"{op}: an index on a GPU for a tensor on the CPU; pass index.cpu()")
        return i
    if i.dtype != bool and isinstance(i, np.ndarray):
        size = x.shape[dim]
        if i.size and not -size <= i.min() <= i.max() < size:
            raise IndexError(f"{op}: indices from {i.min()} to {i.max()}, but dimension {dim} of "
                             f"shape {x.shape} has {-size} to {size - 1}")
    if isinstance(i, np.ndarray):
        return backend.to_device(i, backend.device_of(x))
    return i if i.dtype == bool else checked(op, i, x.shape[dim], low=-x.shape[dim])


def _n_dims(part):
    """Returns how many dimensions of x a part of an index is about."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if hasattr(part, "dtype") and part.dtype == bool else 1


def put(x, steps, value):
    """x[index] = value, an array or a number."""
    *first, last = steps
    for step in first:
        x = x[step]
    x[last] = value


def scatter_add(xp, shape, index, g):
    """Zeros of `shape` plus g[k] added at index[k] for every k, repeats included; index as in
    x[index]. fp16 is summed, and returned, in fp32. np.add.at is quick only in one dimension (7
    times, NumPy 2.4), so the index is flattened."""
    size = math.prod(shape)
    positions = xp.arange(size).reshape(shape)[index]
    gx = xp.zeros(size, backend.accumulate_dtype(g.dtype))
    xp.add.at(gx, positions.reshape(-1), g.reshape(-1).astype(gx.dtype, copy=False))
    return gx.reshape(shape)


class Getitem(Function):
    """x[index]: slices and integers give a view, integer and bool arrays a copy."""
    arithmetic = False

    def forward(self, x, index):
        self.steps, self.shapes = steps(x, index), []
        for step in self.steps:
            self.shapes.append(x.shape)
            x = x[step]
        return x

    def backward(self, gy):
        for step, shape in zip(reversed(self.steps), reversed(self.shapes), strict=True):
            gx = self.xp.zeros(shape, gy.dtype)
            if any(hasattr(i, "dtype") and i.dtype != bool for i in step):  # may repeat
                gx = scatter_add(self.xp, shape, step, gy)
            else:
                gx[step] = gy
            gy = gx
        return gy


class Setitem(Function):
    """x[index] = value, in x's memory. What was there before has no gradient any more."""
    arithmetic = False

    def forward(self, x, value, index):
        self.steps = steps(x, index, "x[index] = y")
        put(x, self.steps, value)
        return x

    def backward(self, gy):
        gx, g_value = gy.copy(), gy
        put(gx, self.steps, 0)
        for step in self.steps:
            g_value = g_value[step]
        return gx, g_value


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
    """input[index] with ints, slices, None, ..., integer arrays or tensors, bool masks. The order
    of the result's dimensions is PyTorch's, which is not always NumPy's: see `steps`."""
    parts = parts_of(input, index)
    y = Getitem.apply(input, index=parts)
    return y if type(index) is int else note(y, arrays_kept(index, parts))


def gather(input, dim, index):
    """input's element at index[i, j, k] of `dim`, and at the other places of its own."""
    if not input.shape and index.shape == (1,):  # a 0-d tensor is a vector of one here
        input = input.reshape(1)
    return note(Gather.apply(input, index, dim=dim), [index])


def index_select(input, dim, index):
    """The slices of `dim` at the places in the 1-d integer `index`, repeats included. Negative
    places are an error, as in PyTorch."""
    if not input.shape and index.shape == (1,):
        return index_select(input.reshape(1), dim, index).reshape(())
    return note(IndexSelect.apply(input, index, dim=dim), [index])


def tril(input, diagonal=0):
    """Zero above the diagonal."""
    return Triangle.apply(input, diagonal=diagonal, name="tril")


def triu(input, diagonal=0):
    """Zero below the diagonal."""
    return Triangle.apply(input, diagonal=diagonal, name="triu")
