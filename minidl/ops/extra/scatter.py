"""Scatter: writes elements of one tensor to given places of another. This is the opposite of
gather.

    gather         y[i, j] = x[i, index[i, j]]
    scatter_add    y[i, index[i, j]] += src[i, j]       the gradient of gather
    scatter        y[i, index[i, j]]  = src[i, j]       one of the elements for a place is kept
    index_add      y[:, index[j]]    += alpha src[:, j]     whole slices; index_select's gradient

Elements that are overwritten get no gradient. scatter may write two elements of `src` to one place.
Then it is not defined which element is kept, and both elements get the gradient of the place. This
is so in PyTorch, too.
Test: tests/ops/extra/test_scatter.py
"""

import numpy as np

from minidl import backend
from minidl.cuda.index_check import checked
from minidl.function import Function
from minidl.ops.dims import normalize_dims
from minidl.ops.index import along
from minidl.ops.index import scatter_add as add_at
from minidl.ops.select import clamp, where
from minidl.ops.shape import broadcast_to
from minidl.saved import note
from minidl.tensor import Tensor, wrapped


class ScatterAdd(Function):
    """Adds src[k] at index[k] of a copy of x, for every k. fp16 is summed in fp32."""
    alpha = 1

    def forward(self, x, index, src, dim):
        self.at = _places("scatter_add", self.xp, x, index, dim, src)
        self.within = tuple(map(slice, index.shape))
        self.src_shape = src.shape
        if not index.size:
            return x.copy()
        sums = add_at(self.xp, x.shape, self.at, src[self.within])
        return (x + sums).astype(x.dtype, copy=False)

    def backward(self, gy):
        gsrc = None
        if self.needs[2]:
            gsrc = self.xp.zeros(self.src_shape, gy.dtype)
            if self.at is not None:
                gsrc[self.within] = gy[self.at]
        return gy, None, gsrc


class Scatter(Function):
    """Writes src[k] at index[k] of a copy of x, for every k. src is a number, or a tensor that is
    not smaller than the index in any dimension."""

    def forward(self, x, index, src, dim):
        self.at = _places("scatter", self.xp, x, index, dim, src)
        self.within, self.src_shape = tuple(map(slice, index.shape)), getattr(src, "shape", None)
        y = x.copy()
        if index.size:
            y[self.at] = src if self.src_shape is None else src[self.within]
        return y

    def backward(self, gy):
        gx, gsrc = gy, None
        if self.at is not None:
            if self.needs[0]:
                gx = gy.copy()
                gx[self.at] = 0
            if self.needs[2]:
                gsrc = self.xp.zeros(self.src_shape, gy.dtype)
                gsrc[self.within] = gy[self.at]
        return gx, None, gsrc


class ScatterProd(Function):
    """Multiplies a copy of x by src[k] at index[k], for every k. Saves x and src. The gradient of a
    factor is the product of all other factors at its place."""

    op = "scatter_reduce"

    def forward(self, x, index, src, dim):
        self.at = _places("scatter_reduce", self.xp, x, index, dim, src)
        self.within = tuple(map(slice, index.shape))
        (self.dim,) = normalize_dims(dim, x.ndim, "scatter_reduce") or (0,)
        self.save(x, src)
        return self.multiplied(x, src)

    def multiplied(self, x, src):
        y = x.copy()
        if self.at is not None:
            multiply_at(y, self.at, src[self.within], self.dim)
        return y

    def backward(self, gy):
        (x, src), xp = self.saved, self.xp
        n_zeros = xp.asarray(x == 0).astype(np.int64)
        if self.at is not None:
            xp.add.at(n_zeros, self.at, src[self.within] == 0)
        # Computes the products again, with 1 in place of each factor 0.
        product = self.multiplied(xp.where(x == 0, 1, x), xp.where(src == 0, 1, src))

        def of_others(factor, n_zeros, product):
            alone = n_zeros - (factor == 0) == 0  # True where no other factor is 0
            return xp.where(alone, product / xp.where(factor == 0, 1, factor), 0)

        gsrc = xp.zeros(src.shape, gy.dtype)
        if self.at is not None:
            gsrc[self.within] = gy[self.at] * of_others(src[self.within], n_zeros[self.at],
                                                        product[self.at])
        return gy * of_others(x, n_zeros, product), None, gsrc


def multiply_at(y, at, values, dim):
    """Computes y[at] *= values in place. `at` may contain the same place several times. CuPy has no
    multiply.at, so the function works on one slice along `dim` after another. Within a slice all
    places are different."""
    if not values.ndim:
        y[...] *= values
        return
    for k in range(values.shape[dim]):
        here = (slice(None),) * dim + (slice(k, k + 1),)
        place = tuple(a[here] if a.shape[dim] > 1 else a for a in at)
        y[place] *= values[here]


class ScatterWhole(Function):
    """The op scatter_reduce for integers and bools, which have no gradient."""

    differentiable = False
    op = "scatter_reduce"

    def forward(self, x, index, src, dim, reduce, include_self):
        xp, at = self.xp, _places("scatter_reduce", self.xp, x, index, dim, src)
        y = x.copy()
        if at is None:
            return y
        name, start = STARTS[reduce]
        if not include_self:
            if start is None:
                least_most = (False, True) if x.dtype == bool else (
                    np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
                start = least_most[reduce == "amin"]
            y[at] = start
        values = src[tuple(map(slice, index.shape))]
        if reduce == "prod":
            (dim,) = normalize_dims(dim, x.ndim, "scatter_reduce") or (0,)
            multiply_at(y, at, values, dim)
        else:
            y = combined_at(xp, name, y, at, values)
        if reduce == "mean":
            n = xp.full(x.shape, int(include_self))
            xp.add.at(n, at, 1)
            y = (y // xp.maximum(n, 1)).astype(x.dtype)
        return y


# {reduce: (NumPy's ufunc, the start value)}. A start value of None stands for the smallest or the
# largest number of the dtype.
STARTS = {"sum": ("add", 0), "prod": ("multiply", 1), "mean": ("add", 0),
          "amax": ("maximum", None), "amin": ("minimum", None)}


class IndexAdd(Function):
    """Adds slices of src to a copy of x, along dim: alpha times slice j of src is added to slice
    index[j]."""

    def forward(self, x, index, src, dim, alpha):
        self.shape, self.src_shape, self.alpha = x.shape, src.shape, alpha
        x, src = (a if x.ndim else a.reshape(1) for a in (x, src))
        self.at = _slices("index_add", x, index, dim)
        if src.dtype.kind != "f":
            alpha = self.xp.asarray(alpha).astype(src.dtype)
        y = x + add_at(self.xp, x.shape, self.at, src * alpha)
        return y.astype(x.dtype, copy=False).reshape(self.shape)

    def backward(self, gy):
        wide = gy if self.shape else gy.reshape(1)
        gsrc = (wide[self.at] * self.alpha).reshape(self.src_shape) if self.needs[2] else None
        return gy, None, gsrc


class IndexWrite(Function):
    """Writes slices of src into a copy of x, along dim: slice j of src is written at place
    index[j]. If src is a number, it is written at all these places."""

    def forward(self, x, index, src, dim, name):
        self.name, self.shape, self.src_shape = name, x.shape, src.shape
        y = x.copy() if x.ndim else x.reshape(1).copy()
        self.at = _slices(name, y, index, dim)
        y[self.at] = src.reshape(1) if not x.ndim else src
        return y.reshape(self.shape)

    def backward(self, gy):
        gx = gy.copy() if self.shape else gy.reshape(1).copy()
        gsrc = gx[self.at].reshape(self.src_shape) if self.src_shape else None
        gx[self.at] = 0
        gx = gx.reshape(self.shape)
        if gsrc is None:  # src is one number, so gy is summed over the places that were written
            gsrc = (gy - gx).sum()
        return gx, None, gsrc


def _places(op, xp, x, index, dim, src):
    """Returns an index of x, as a tuple of arrays. For each element of src, the index has the place
    in x. Returns None if `index` is empty. Raises ValueError if sizes do not fit."""
    (dim,) = normalize_dims(dim, x.ndim, op) or (0,)
    if not index.size:
        return None
    if index.dtype.kind not in "iu" or index.ndim != x.ndim:
        raise ValueError(f"{op}: wants an integer index of {x.ndim} dimensions, got {index.dtype} "
                         f"of shape {tuple(index.shape)}")
    given = getattr(src, "shape", index.shape)
    fits = all(n <= m for n, m in zip(index.shape, given)) and len(given) == index.ndim
    fits &= all(n <= m for d, (n, m) in enumerate(zip(index.shape, x.shape)) if d != dim)
    if not fits:
        raise ValueError(f"{op}: the index is too large. In every dimension it must be at most the "
                         f"size of src. In every dimension except {dim} it must also be at most "
                         f"the size of the input; got index {tuple(index.shape)}, src {given}, "
                         f"input {tuple(x.shape)}")
    n = x.shape[dim] if x.ndim else 1
    return along(xp, _in_range(op, index, n), dim)


def _slices(op, x, index, dim):
    (dim,) = normalize_dims(dim, x.ndim, op)
    if index.dtype.kind not in "iu" or index.ndim > 1:
        raise ValueError(f"{op}: wants a vector of integers as index, got {index.dtype} of shape "
                         f"{tuple(index.shape)}")
    index = _in_range(op, index, x.shape[dim])
    return (slice(None),) * dim + (index.reshape(-1),)


def _in_range(op, index, n):
    """Returns the index. Raises IndexError if it is out of range. On a GPU the error may come
    later, so that the host does not wait."""
    if not isinstance(index, np.ndarray):
        return checked(op, index, n)
    if index.size and not 0 <= int(index.min()) <= int(index.max()) < n:
        raise IndexError(f"{op}: indices must be from 0 to {n - 1}; got indices from "
                         f"{int(index.min())} to {int(index.max())}")
    return index


def scatter(input, dim, index, src=None, *, value=None, reduce=None):
    """Returns a copy of `input` into which the elements of src are written: src[i, j] is written at
    place index[i, j] of `dim`. In the other dimensions an element of src keeps its place. src: a
    tensor, or a number (value=). If reduce is "add", src[i, j] is added instead."""
    src = value if src is None else src
    if reduce == "add":
        if not isinstance(src, Tensor):
            src = Tensor(input._xp.full(index.shape, src, input.dtype))
        return scatter_add(input, dim, index, src)
    if reduce is not None:
        raise ValueError(f"scatter: reduce must be None or 'add'; got {reduce!r}")
    _same_dtype("scatter", input, src)
    return note(Scatter.apply(input, index, src, dim=dim), [index])


def scatter_add(input, dim, index, src):
    """Returns a copy of `input` to which the elements of src are added: src[i, j] is added at place
    index[i, j] of `dim`. In the other dimensions an element of src keeps its place. If several
    elements of src have the same place, all of them are added."""
    _same_dtype("scatter_add", input, src)
    return note(ScatterAdd.apply(input, index, src, dim=dim), [index])


def scatter_reduce(input, dim, index, src, reduce, *, include_self=True):
    """Reduces all src[i, j] that have the same place index[i, j] of `dim`. Returns a copy of
    `input` with the results at these places. reduce: "sum", "prod", "mean", "amax" or "amin".
    include_self: if True, the element of `input` at a place takes part in the reduction, too. For
    amax and amin, equal elements share the gradient. The mean of integers is rounded down."""
    _same_dtype("scatter_reduce", input, src)
    if reduce not in STARTS:
        raise ValueError(f"scatter_reduce: reduce must be one of {', '.join(STARTS)}; got "
                         f"{reduce!r}")
    input, index, src = wrapped(input), wrapped(index), wrapped(src)
    if not backend.is_floating(input.dtype):
        return ScatterWhole.apply(input, index, src, dim=dim, reduce=reduce,
                                  include_self=include_self)
    if reduce == "prod":
        if not include_self:
            ones = Tensor(src._xp.ones(src.shape, src.dtype))
            met = scatter_add(input.detach() * 0, dim, index, ones)
            input = where(met > 0, 1.0, input)
        return note(ScatterProd.apply(input, index, src, dim=dim), [index])
    worst = {"amax": -np.inf, "amin": np.inf}.get(reduce, 0)
    ones = Tensor(src._xp.ones(src.shape, src.dtype))
    met = scatter_add(input.detach() * 0, dim, index, ones)  # number of src elements at each place
    kept = input if include_self else where((met > 0), worst, input)
    if reduce in ("sum", "mean"):
        total = scatter_add(kept, dim, index, src)
        n = met + 1 if include_self else clamp(met, min=1)
        return total if reduce == "sum" else total / n
    best = _best(reduce, kept.detach(), dim, index, src.detach())
    here, there = kept == best, src == best.gather(dim, index)
    n = scatter_add(here.to(input.dtype), dim, index, there.to(input.dtype))
    # If n elements are equal, their mean is equal to each of them. The backward of the mean divides
    # the gradient among them.
    shared = scatter_add(where(here, kept, 0.0), dim, index, where(there, src, 0.0)) / n
    return where(n > 1, shared - shared.detach() + best, shared)


def _best(reduce, x, dim, index, src):
    """Returns a tensor of x's shape, which the graph does not record. reduce: "amax" or "amin".
    Each place has the largest (or smallest) of x's element and the elements of src for this
    place."""
    xp = x._xp
    y = x.array.copy()
    at = _places("scatter_reduce", xp, y, index.array, dim, src)
    if at is not None:
        y = combined_at(xp, STARTS[reduce][0], y, at, src.array[tuple(map(slice, index.shape))])
    return Tensor(y)


def combined_at(xp, name, y, at, values):
    """Computes ufunc.at(y, at, values) and returns y. `name` is the name of the ufunc: add, maximum
    or minimum. The function may overwrite y.

    CuPy's `at` takes few dtypes, and its maximum of float64 gives NaN (CuPy 14.2). So on a GPU,
    integers of fewer than 32 bits become int64. The maximum or minimum of floats is computed with
    integers (`_largest_at`)."""
    if xp is not np and y.dtype.kind == "f" and name != "add":
        return _largest_at(xp, y, at, values, sign=1 if name == "maximum" else -1)
    if xp is not np and y.dtype.kind in "biu" and y.dtype.itemsize < 4:
        wide = y.astype(np.int64)
        getattr(xp, name).at(wide, at, values.astype(np.int64))
        return wide.astype(y.dtype)
    getattr(xp, name).at(y, at, values)
    return y


def _largest_at(xp, y, at, values, sign):
    """Does the same as `combined_at` for floats. sign: 1 for the maximum, -1 for the minimum.

    Works on integers that have the same order as the floats. The bits of a float are read as an
    integer. A larger positive float has a larger integer. A larger negative float has a smaller
    integer, so all bits except the sign are inverted. NaN has a larger integer than all numbers, so
    the result is NaN, as in NumPy."""
    wide = np.float64 if y.dtype == np.float64 else np.float32
    integer = np.int64 if y.dtype == np.float64 else np.int32
    below_sign = np.iinfo(integer).max

    def to_integers(x):
        x = xp.where(xp.isnan(x), xp.asarray(np.nan, wide), sign * x.astype(wide))
        bits = x.view(integer)
        return xp.where(bits < 0, bits ^ below_sign, bits)

    best = to_integers(y)
    xp.maximum.at(best, at, to_integers(values))
    bits = xp.where(best < 0, best ^ below_sign, best)
    return (sign * bits.view(wide)).astype(y.dtype)


def index_add(input, dim, index, source, *, alpha=1):
    """Returns a copy of `input` to which slices of `source` are added: alpha times slice j is added
    to slice index[j] along `dim`. If `index` contains the same number several times, all the slices
    for this number are added."""
    _same_dtype("index_add", input, source)
    return note(IndexAdd.apply(input, index, source, dim=dim, alpha=alpha), [index])


def index_copy(input, dim, index, source):
    """Returns a copy of `input` into which the slices of `source` are written: slice j is written
    at place index[j] of `dim`. All numbers in `index` must be different."""
    _same_dtype("index_copy", input, source)
    return note(IndexWrite.apply(input, index, source, dim=dim, name="index_copy"), [index])


def index_fill(input, dim, index, value):
    """Returns a copy of `input` into which `value` is written at the places `index` of `dim`.
    value: a number or a 0-d tensor."""
    input = wrapped(input)
    value = value.to(input.dtype) if isinstance(value, Tensor) else Tensor(
        input._xp.asarray(value, input.dtype))
    return note(IndexWrite.apply(input, index, value, dim=dim, name="index_fill"), [index])


def masked_select(input, mask):
    """Returns a vector of the elements where the bool tensor `mask` is True. input and mask
    broadcast."""
    shape = backend.xp_of([]).broadcast_shapes(input.shape, mask.shape)
    if not shape:
        return input.reshape(1)[mask.reshape(1)]
    return broadcast_to(input, shape)[broadcast_to(mask, shape)]


def _same_dtype(op, input, src):
    if isinstance(src, Tensor) and src.dtype != input.dtype:
        raise TypeError(f"{op}: the input is {input.dtype}, the source is {src.dtype}; the two "
                        "must have the same dtype. Cast one of them with .to(...)")
