"""sort, argsort, topk, kthvalue and median. They return values and their indices.

    x = [3 1 2]    sort(x) = ([1 2 3], indices [1 2 0])       gx[indices] = gy

The values are x at the indices. No index is repeated, so backward is an assignment. Equal elements
keep their order (a stable sort), and nan is larger than every number, as in PyTorch.
Test: tests/ops/extra/test_sort.py
"""

from minidl.function import Function
from minidl.ops.dims import normalize_dims
from minidl.ops.extreme import Found, with_indices
from minidl.ops.index import along
from minidl.tensor import Tensor


class SortResult(Found):
    pass


class TopkResult(Found):
    pass


class KthvalueResult(Found):
    pass


class MedianResult(Found):
    pass


def order(xp, x, axis, descending=False):
    """Returns the indices that sort x along `axis`. The result for `descending` is not the reversed
    ascending order, because reversing also changes the order of equal elements."""
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable")
    backwards = xp.argsort(xp.flip(x, axis), axis=axis, kind="stable")
    return xp.flip(x.shape[axis] - 1 - backwards, axis)


class Ordered(Function):
    """Sorts along a dim. Returns (values, indices) of a part of the sorted elements: the places
    `start` to `stop` - 1."""

    def forward(self, x, dim, name, start=0, stop=None, descending=False, squeeze=False):
        self.name, self.shape = name, x.shape
        x = x.reshape(1) if x.ndim == 0 else x
        (dim,) = normalize_dims(dim, x.ndim, name)
        n = x.shape[dim]
        stop = n if stop is None else stop
        if not 0 <= start <= stop <= n:
            raise ValueError(f"{name}: wants the elements at the places {start} to {stop - 1} of "
                             f"the sorted order, but dimension {dim} of shape {tuple(self.shape)} "
                             f"has the places 0 to {n - 1}")
        indices = self.choose(x, dim, slice(start, stop), descending)
        self.at, self.one_d = along(self.xp, indices, dim), x.shape
        kept = self.kept = indices.shape
        shape = kept[:dim] + kept[dim + squeeze:] if self.shape else ()
        return x[self.at].reshape(shape), indices.reshape(shape)

    def choose(self, x, dim, ranks, descending):
        return order(self.xp, x, dim, descending)[(slice(None),) * dim + (ranks,)]

    def backward(self, gy, _):
        gx = self.xp.zeros(self.one_d, gy.dtype)
        gx[self.at] = gy.reshape(self.kept)
        return gx.reshape(self.shape)


class MedianAlong(Ordered):
    """(values, indices) of the lower medians along a dim. If there is a nan along the dim, the
    first nan and its index are used in place of the median."""

    def choose(self, x, dim, ranks, descending):
        middle = super().choose(x, dim, ranks, descending)
        if x.dtype.kind != "f":
            return middle
        nan = self.xp.isnan(x)
        return self.xp.where(nan.any(axis=dim, keepdims=True),
                             nan.argmax(axis=dim, keepdims=True), middle)


class Argsort(Function):
    """The indices that sort x along a dim."""
    differentiable = False

    def forward(self, x, dim, descending):
        dims = normalize_dims(dim, x.ndim, "argsort")
        if x.ndim == 0:
            return self.xp.zeros((), "i8")
        return order(self.xp, x, *dims, descending)


class Median(Function):
    """The lower median of all elements, or nan if an element is nan. All elements that equal the
    median share its gradient."""

    def forward(self, x):
        ordered = self.xp.sort(x.reshape(-1))
        if not x.size:
            return self.xp.full((), float("nan"), x.dtype)
        y = ordered[(x.size - 1) // 2]
        if x.dtype.kind == "f":  # a nan is sorted to the end
            y = self.xp.where(self.xp.isnan(ordered[-1]), ordered[-1], y)
        self.save(x, y)
        return y

    def backward(self, gy):
        x, y = self.saved
        best = (x == y) | (self.xp.isnan(x) & self.xp.isnan(y))
        return gy / self.xp.maximum(best.sum(), 1) * best


def sort(input, dim=-1, descending=False, stable=False) -> SortResult:
    """Returns the named tuple (values, indices), sorted along `dim`. The sort is always stable."""
    return with_indices(SortResult, Ordered.apply(
        input, dim=dim, name="sort", descending=bool(descending)))


def argsort(input, dim=-1, descending=False, stable=False):
    """Returns the indices that sort `input` along `dim`."""
    return Argsort.apply(input, dim=dim, descending=bool(descending))


def topk(input, k, dim=-1, largest=True, sorted=True) -> TopkResult:
    """Returns the named tuple (values, indices) of the k largest (or smallest) elements along
    `dim`, in order."""
    k = int(k)
    return with_indices(TopkResult, Ordered.apply(
        input, dim=dim, name="topk", stop=k, descending=largest))


def kthvalue(input, k, dim=-1, keepdim=False) -> KthvalueResult:
    """Returns the named tuple (values, indices) of the k-th smallest element along `dim`. k counts
    from 1."""
    return with_indices(KthvalueResult, Ordered.apply(
        input, dim=dim, name="kthvalue", start=k - 1, stop=k, squeeze=not keepdim))


def median(input, dim=None, keepdim=False) -> Tensor | MedianResult:
    """median(x) is the middle element, or the lower one of two middle elements. median(x, dim) is
    the named tuple (values, indices) of the medians along `dim`."""
    if dim is None:
        return Median.apply(input)
    n = input.shape[dim] if input.ndim else 1
    if not n:
        raise IndexError(f"median: dimension {dim} of shape {tuple(input.shape)} has no elements")
    return with_indices(MedianResult, MedianAlong.apply(
        input, dim=dim, name="median", start=(n - 1) // 2, stop=(n + 1) // 2,
        squeeze=not keepdim))
