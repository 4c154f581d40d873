"""Indexing: picks elements. Backward adds the gradient of each element at the element's old place.

    x = [a b c d]    x[[3, 1, 3]] = [d b d]    gradient of d: gy[0] + gy[2]

If an index contains a place several times, the gradients of this place must be *added*. But
`gx[index] = gy` keeps only one of these gradients. `gx[index] += gy` also keeps only one. Slices
and bool masks contain each place only once, so `gx[index] = gy` is enough for them.

The order of the result's dimensions is PyTorch's. NumPy has another order if an index mixes arrays
with numbers or None. So an index may be used in two steps: see `steps`.
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
    """Returns the index as a tuple of parts. `index` may have any form that a user can write. A
    part is an int, a slice, None, Ellipsis, an integer array, or a bool array (a mask). Raises
    ValueError or IndexError where PyTorch does. Also raises IndexError where PyTorch plans to
    change the meaning of an index: for uint8 arrays, and for a list of lists without a tuple."""
    if isinstance(index, tuple):
        return tuple([_part(x, i, op) for i in index])
    if isinstance(index, list) and any(
            i is None or i is Ellipsis or isinstance(i, (list, tuple, slice, Tensor, np.ndarray))
            for i in index):
        raise IndexError(f"{op}: a list of lists, slices or tensors has two meanings as an index "
                         f"into shape {tuple(x.shape)}. Write x[a, b] for one index for each "
                         "dimension, or x[minidl.tensor(list)] for one array of indices")
    return (_part(x, index, op),)


def _part(x, i, op):
    """Returns one part of an index in a form that NumPy accepts. A bool and a 0-d mask become a 0-d
    array."""
    if type(i) is int or i is None or i is Ellipsis:
        return i
    if isinstance(i, slice):
        if i.step is not None and not i.step > 0:
            raise ValueError(f"{op}: wants a step of 1 or more, got {i.step}; minidl.flip(x, "
                             "[dim]) reverses the order")
        return i
    array = i.array if isinstance(i, Tensor) else _array(i)
    dtype = getattr(array, "dtype", None)
    if dtype is None and hasattr(i, "__index__"):
        return i.__index__()
    if dtype is None or isinstance(i, np.bool_):
        raise IndexError(f"{op}: each part of an index into shape {tuple(x.shape)} must be an "
                         "integer, a slice, None, an Ellipsis (...), or integers or bools in a "
                         f"list, an array or a tensor; got {type(i).__name__}")
    kind, size = dtype.kind, dtype.itemsize
    if kind == "u" and size == 1:
        raise IndexError(f"{op}: a uint8 index into shape {tuple(x.shape)} can be a mask or a "
                         "list of positions. Use .bool() for a mask, or .long() for positions")
    if kind not in "biu" or isinstance(i, Tensor) and kind != "b" and (kind, size) not in (
            ("i", 8), ("i", 4)):
        raise IndexError(f"{op}: an index into shape {tuple(x.shape)} must be a tensor of int64, "
                         f"int32 or bool, or an array of integers or bools; got {dtype}")
    return int(array) if not array.ndim and kind != "b" else array


def _array(i):
    """Returns a part of an index as an array. i: the part, but not a Tensor. If i cannot become an
    array, returns i itself. An array is copied, because the user may change it before backward
    reads it."""
    if isinstance(i, (list, tuple, range)):
        i = np.asarray(_numbers(i))
    array = np.array(i) if isinstance(i, (bool, np.ndarray)) else backend.plain_array(i)
    if isinstance(array, np.ndarray) and array.size == 0 and array.dtype.kind == "f":
        return array.astype(np.int64)  # an empty list counts as a list of integers
    return array


def _numbers(nested):
    """Returns `nested` as nested lists of numbers. Tensors and arrays in it become lists."""
    if isinstance(nested, (list, tuple, range)):
        return [_numbers(inner) for inner in nested]
    return nested.tolist() if hasattr(nested, "tolist") else nested


def arrays_kept(index, parts):
    """Returns a list of the Tensors in an index. Backward will read the arrays of these Tensors."""
    tensors = index if isinstance(index, tuple) else (index,)
    return [i for i, part in zip(tensors, parts) if isinstance(i, Tensor) and i.array is part]


def steps(x, parts, op="x[index]"):
    """Divides `parts`, an index into x, into one or two indices. Returns these indices as a tuple.
    Two indices are used one after the other: x[index] = x[first][second].

        x[0, :, [2, 1], None]      first (0, :, :, None)     a view: numbers, slices, None
                                   second (:, [2, 1], :)     arrays and slices only

    If an index has an array, NumPy treats the numbers of this index as arrays, too. If a slice or
    an Ellipsis is between two arrays, NumPy puts the dimensions of the arrays first. PyTorch
    applies numbers, slices and None first. In the second step NumPy and PyTorch agree. If the
    arrays are neighbours, their dimensions do not move. Otherwise the dimensions of the arrays come
    first.
    """
    arrays = [i for i in parts if hasattr(i, "dtype")]
    if not arrays:
        if Ellipsis not in parts:
            parts = (*parts, ...)  # so that a single element is a 0-d view, not a number
        return (parts,)
    n_left = x.ndim - sum(map(_n_dims, parts))
    if n_left < 0:
        raise IndexError(f"{op}: wants at most {x.ndim} indices, one for each dimension of shape "
                         f"{x.shape}; got {x.ndim - n_left}")
    if sum(i is Ellipsis for i in parts) > 1:
        raise IndexError(f"{op}: wants at most one Ellipsis (...) in an index; got several")
    first, second, dim, is_view = [], [], 0, False  # dim: the next dimension of x
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
            if i.ndim == 0:  # True adds a dimension of size 1, and False adds a dimension of size 0
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
    """Returns the index array i on the device of x. i indexes n dimensions of x, from `dim` on.
    Raises IndexError if a mask has another shape than these dimensions. NumPy checks the range of
    integers itself. If x is on a GPU, this function checks the range."""
    if n and i.dtype == bool and i.shape != x.shape[dim:dim + n]:
        raise IndexError(f"{op}: a mask at dimension {dim} of shape {x.shape} must have shape "
                         f"{x.shape[dim:dim + n]}; got {i.shape}")
    if isinstance(x, np.ndarray):
        if not isinstance(i, np.ndarray):
            raise IndexError(f"{op}: the index is on a GPU, but the tensor is on the CPU; pass "
                             "index.cpu()")
        return i
    if i.dtype != bool and isinstance(i, np.ndarray):
        size = x.shape[dim]
        if i.size and not -size <= i.min() <= i.max() < size:
            raise IndexError(f"{op}: indices from {i.min()} to {i.max()}, but dimension {dim} of "
                             f"shape {x.shape} has the indices {-size} to {size - 1}")
    if isinstance(i, np.ndarray):
        return backend.to_device(i, backend.device_of(x))
    return i if i.dtype == bool else checked(op, i, x.shape[dim], low=-x.shape[dim])


def _n_dims(part):
    """Returns the number of dimensions of x that a part of an index stands for."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if hasattr(part, "dtype") and part.dtype == bool else 1


def put(x, steps, value):
    """Computes x[index] = value. steps: the result of steps() for this index. value: an array or a
    number."""
    *first, last = steps
    for step in first:
        x = x[step]
    x[last] = value


def scatter_add(xp, shape, index, g):
    """Makes an array of zeros of this shape, adds g[k] at index[k] for every k, and returns the
    array. If `index` contains the same place several times, all the g[k] for this place are added.
    index: as in x[index]. fp16 is summed, and returned, in fp32. The index is flattened, because
    np.add.at is 7 times as fast in one dimension (NumPy 2.4)."""
    size = math.prod(shape)
    positions = xp.arange(size).reshape(shape)[index]
    gx = xp.zeros(size, backend.accumulate_dtype(g.dtype))
    xp.add.at(gx, positions.reshape(-1), g.reshape(-1).astype(gx.dtype, copy=False))
    return gx.reshape(shape)


class Getitem(Function):
    """x[index]. Slices and integers give a view. Integer and bool arrays give a copy."""
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
            # An index array may contain the same place several times. Then the gradients are added.
            if any(hasattr(i, "dtype") and i.dtype != bool for i in step):
                gx = scatter_add(self.xp, shape, step, gy)
            else:
                gx[step] = gy
            gy = gx
        return gy


class Setitem(Function):
    """x[index] = value, written into x's memory. The overwritten elements of x get no gradient."""
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
    """y[i, j, k] = x[i, index[i, j, k], k] for dim 1. Other dims work in the same way."""
    arithmetic = False

    def forward(self, x, index, dim):
        (dim,) = normalize_dims(dim, x.ndim, "gather") or (0,)
        if index.dtype.kind not in "iu" or index.ndim != x.ndim:
            raise ValueError(f"gather: wants an integer index of {x.ndim} dimensions, got "
                             f"{index.dtype} of shape {index.shape}")
        if any(n > m for i, (n, m) in enumerate(zip(index.shape, x.shape)) if i != dim):
            raise ValueError(f"gather: the index must not be larger than the input, except in "
                             f"dimension {dim}; got an index of shape {index.shape} and an input "
                             f"of shape {x.shape}")
        if self.xp is not np:
            index = checked("gather", index, x.shape[dim] if x.ndim else 1)
        self.shape, self.index = x.shape, along(self.xp, index, dim)
        return x[self.index]

    def backward(self, gy):
        return scatter_add(self.xp, self.shape, self.index, gy), None


class IndexSelect(Gather):
    """y[i, t, k] = x[i, index[t], k] for dim 1. Other dims work in the same way."""

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
                             f"dimension {dim} of shape {x.shape} has the indices 0 to {n - 1}")
        self.shape, self.index = x.shape, (slice(None),) * dim + (index.reshape(-1),)
        return x[self.index]


def along(xp, index, dim):
    """Returns an index for x, as a tuple of arrays. The result of x[this index] has the shape of
    `index`. Along `dim`, element (i, j, k) of the result comes from the place index[i, j, k] of x.
    Along the other dimensions it comes from the places i, j, k."""
    grid = [xp.arange(n).reshape([-1 if i == d else 1 for i in range(index.ndim)])
            for d, n in enumerate(index.shape)]
    grid[dim:dim + 1] = [index] if index.ndim else []
    return tuple(grid)


class Triangle(Function):
    """x with zeros on one side of a diagonal of the last two dimensions. name: "tril" or "triu"."""
    arithmetic = False

    def forward(self, x, diagonal, name):
        self.diagonal, self.name = diagonal, name
        if x.ndim < 2:
            raise ValueError(f"{name}: wants at least 2 dimensions, got shape {x.shape}")
        return getattr(self.xp, name)(x, diagonal)

    def backward(self, gy):
        return getattr(self.xp, self.name)(gy, self.diagonal)


def getitem(input, index):
    """input[index]. An index may have ints, slices, None, an Ellipsis, integer arrays or tensors,
    and bool masks. The order of the result's dimensions is PyTorch's, which may differ from
    NumPy's: see `steps`."""
    parts = parts_of(input, index)
    y = Getitem.apply(input, index=parts)
    return y if type(index) is int else note(y, arrays_kept(index, parts))


def gather(input, dim, index):
    """Returns y, which has the shape of `index`: y[i, j, k] = input[i, index[i, j, k], k] for
    dim 1. Other dims work in the same way."""
    if not input.shape and index.shape == (1,):  # a 0-d input counts as a vector of one element
        input = input.reshape(1)
    return note(Gather.apply(input, index, dim=dim), [index])


def index_select(input, dim, index):
    """Returns the slices along `dim` at the places in `index`, a 1-d integer tensor. `index` may
    contain the same place several times. Raises IndexError for negative places, as PyTorch does."""
    if not input.shape and index.shape == (1,):
        return index_select(input.reshape(1), dim, index).reshape(())
    return note(IndexSelect.apply(input, index, dim=dim), [index])


def tril(input, diagonal=0):
    """Returns the input with zeros above a diagonal. diagonal: 0 is the main diagonal, 1 is the
    diagonal above it, -1 is the diagonal below it."""
    return Triangle.apply(input, diagonal=diagonal, name="tril")


def triu(input, diagonal=0):
    """Returns the input with zeros below a diagonal. diagonal: as in tril."""
    return Triangle.apply(input, diagonal=diagonal, name="triu")
