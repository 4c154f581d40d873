"""Ops that move or repeat elements: roll, diagonal, repeat_interleave, meshgrid and pad.

    roll([1 2 3], 1) = [3 1 2]          repeat_interleave([1 2], 2) = [1 1 2 2]
    diagonal of (n, m) -> (min(n, m),)   meshgrid((n,), (m,)) -> (n, m) and (n, m), views

Test: tests/ops/extra/test_rearrange.py
"""

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.ops.dims import normalize_dims
from minidl.ops.index import index_select
from minidl.ops.matmul import product
from minidl.ops.shape import Pad
from minidl.tensor import Tensor, wrapped


class Roll(Function):
    """Shifts elements. Elements that move past one end come in at the other end. Backward
    shifts the gradient back."""
    arithmetic = False

    def forward(self, x, shifts, dims):
        self.shifts, self.dims = shifts, dims
        return self.xp.roll(x, shifts, dims)

    def backward(self, gy):
        back = -self.shifts if isinstance(self.shifts, int) else tuple(-s for s in self.shifts)
        return self.xp.roll(gy, back, self.dims)


class Diagonal(Function):
    """y[..., k] = x[..., k, k + offset], a view. Backward writes the gradient into an array of
    zeros."""
    arithmetic = False

    def forward(self, x, offset, dim1, dim2):
        dims = normalize_dims((dim1, dim2), x.ndim, "diagonal")
        self.shape, self.dims, self.offset = x.shape, dims, offset
        return self.xp.diagonal(x, offset, *dims)

    def backward(self, gy):
        gx = self.xp.zeros(self.shape, gy.dtype)
        k = self.xp.arange(gy.shape[-1])
        last_two = self.xp.moveaxis(gx, self.dims, (-2, -1))  # a view of gx
        last_two[..., k - min(self.offset, 0), k + max(self.offset, 0)] = gy
        return gx


class RepeatEach(Function):
    """Each slice of `dim`, repeated n times in a row. Backward sums the gradients of the n
    repeats."""

    def forward(self, x, n, dim):
        self.split = *x.shape[:dim + 1], n, *x.shape[dim + 1:]
        self.dim = dim
        return self.xp.repeat(x, n, axis=dim)

    def backward(self, gy):
        return gy.reshape(self.split).sum(axis=self.dim + 1)


class TakePlaces(Function):
    """Picks elements along several dimensions. places: {dimension: a vector of indices}. An element
    may be picked several times. Backward adds the gradients of an element by a product with a
    matrix of zeros and ones."""
    arithmetic = False

    def forward(self, x, places):
        self.shape = x.shape
        self.places = {d: self.xp.asarray(p) for d, p in places.items()}
        for d, p in self.places.items():
            x = x.take(p, axis=d)
        return x

    def backward(self, gy):
        move, wide = self.xp.moveaxis, backend.accumulate_dtype(gy.dtype)
        gx = gy.astype(wide, copy=False)
        for d, p in self.places.items():  # (..., out) @ (out, in)
            a = (p[:, None] == self.xp.arange(self.shape[d])).astype(wide)
            gx = move(product(self.xp, move(gx, d, -1), a), -1, d)
        return gx


def roll(input, shifts, dims=None):
    """Shifts elements along dims. Elements that move past one end come in at the other end. If dims
    is None, shifts the flattened tensor."""
    if dims is not None:
        several = [tuple(v) if isinstance(v, (tuple, list)) else (v,) for v in (shifts, dims)]
        shifts, dims = several[0], normalize_dims(several[1], input.ndim, "roll")
        if len(shifts) != len(several[1]):
            raise ValueError(f"roll: wants one shift for each dim; got {len(shifts)} shifts for "
                             f"{len(several[1])} dims")
        if not input.ndim:
            return Roll.apply(input, shifts=0, dims=None)
    elif isinstance(shifts, (tuple, list)):
        (shifts,) = shifts
    return Roll.apply(input, shifts=shifts, dims=dims)


def diagonal(input, offset=0, dim1=0, dim2=1):
    """Returns a view whose last dimension is a diagonal of dim1 and dim2. Element i of the
    diagonal has the index i in dim1 and i + offset in dim2 (if offset is not negative)."""
    return Diagonal.apply(input, offset=offset, dim1=dim1, dim2=dim2)


def repeat_interleave(input, repeats=None, dim=None, *, output_size=None):
    """Repeats each element (or each slice along `dim`) several times in a row. repeats: one int for
    all elements, or a tensor with a count for each element. repeat_interleave(counts) returns
    counts[i] copies of each index i."""
    input = wrapped(input)
    if repeats is None:
        input, repeats = Tensor(input._xp.arange(input.shape[0])), input
    if dim is None:
        input, dim = input.reshape(-1), 0
    input = input if input.ndim else input.reshape(1)
    (dim,) = normalize_dims(dim, input.ndim, "repeat_interleave")
    n = input.shape[dim]
    if not isinstance(repeats, Tensor) and hasattr(repeats, "ndim"):
        repeats = Tensor(np.asarray(repeats) if isinstance(repeats, np.generic) else repeats)
    if isinstance(repeats, Tensor) and repeats.numel() == 1:
        repeats = int(repeats)
    if not isinstance(repeats, Tensor):
        return RepeatEach.apply(input, n=int(repeats), dim=dim)
    if repeats.shape != (n,) or repeats.dtype.kind not in "iu":
        raise ValueError(f"repeat_interleave: repeats must be integers of shape ({n},), one number "
                         f"for each slice of dimension {dim}; got {repeats.dtype} of shape "
                         f"{repeats.shape}")
    ends = repeats.array.cumsum()  # element i fills the places ends[i - 1] to ends[i] - 1
    places = repeats._xp.arange(int(ends[-1]) if n else 0)
    return index_select(input, dim, Tensor(repeats._xp.searchsorted(ends, places, "right")))


def meshgrid(*tensors, indexing="ij") -> tuple[Tensor, ...]:
    """Returns the coordinates of a grid: one view for each vector. If the vectors have n, m, ...
    elements, the views have the shape (n, m, ...). View i changes only along dimension i.
    indexing="xy" gives the shape (m, n, ...), as for images."""
    if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)):
        tensors = tensors[0]
    tensors = [wrapped(x) for x in tensors]
    if indexing not in ("ij", "xy") or any(x.ndim > 1 for x in tensors):
        raise ValueError(f"meshgrid: wants vectors and indexing 'ij' or 'xy', got shapes "
                         f"{[x.shape for x in tensors]} and indexing={indexing!r}")
    swap = indexing == "xy" and len(tensors) > 1
    tensors = [tensors[1], tensors[0], *tensors[2:]] if swap else tensors
    shape = tuple(x.numel() for x in tensors)
    grids = [x.reshape([-1 if i == d else 1 for i in range(len(shape))]).expand(shape)
             for d, x in enumerate(tensors)]
    return tuple([grids[1], grids[0], *grids[2:]] if swap else grids)


def pad(input, pad, mode="constant", value=None):
    """Adds borders to the last dimensions. pad: (left, right) of the last dimension, then of the
    dimension before it, and so on, as in torch.nn.functional.pad. Negative widths remove elements.

    mode: the values in the border.
        "constant": `value`, by default 0.
        "replicate": the element at the edge.
        "reflect": the elements next to the edge, in reverse order.
        "circular": the elements at the other end of the input.
    Raises ValueError if a border is too wide for its mode."""
    if mode == "constant":
        return Pad.apply(input, pad=tuple(pad), value=0 if value is None else value)
    if mode not in BORDERS:
        raise ValueError(f"pad: wants mode 'constant' or one of {[*BORDERS]}, got {mode!r}")
    if len(pad) % 2 or not 0 < len(pad) // 2 <= min(input.ndim - 1, 3) or value:
        raise ValueError(f"pad: mode {mode!r} wants two widths for each of the last one, two or "
                         "three dimensions, and no argument `value`; got the widths "
                         f"{tuple(pad)} for shape {tuple(input.shape)} and value={value}")
    places = {}
    for i, (left, right) in enumerate(zip(pad[::2], pad[1::2])):
        d = input.ndim - 1 - i
        n = input.shape[d]
        kept = n + left + right
        if mode == "circular":  # a circular border repeats only elements that are kept
            kept = n + min(left, 0) + min(right, 0)
        if not n or kept < 1 or max(left, right) > BORDERS[mode][1](n):
            raise ValueError(f"pad: mode {mode!r} wants borders of at most {BORDERS[mode][1](n)} "
                             f"around {n} elements, and a result that is not empty; got borders "
                             f"({left}, {right})")
        places[d] = BORDERS[mode][0](left, right, n)
    return TakePlaces.apply(input, places=places)


def _reflected(left, right, n):
    return n - 1 - abs(n - 1 - abs(np.arange(-left, n + right)))


def _around(left, right, n):
    """For mode "circular": returns for each element of the result its place in the input. left,
    right: the widths of the borders. A negative width removes elements, and the other border does
    not repeat the removed elements. n: the size of the input."""
    first, n_kept = max(-left, 0), n - max(-left, 0) - max(-right, 0)
    return first + np.arange(-max(left, 0), n_kept + max(right, 0)) % n_kept


# {mode: (f, g)}. f(left, right, n) returns for each element of the result its place in the input.
# g(n) returns the largest width of a border.
BORDERS = {
    "replicate": (lambda left, right, n: np.arange(-left, n + right).clip(0, n - 1),
                  lambda n: float("inf")),
    "reflect": (_reflected, lambda n: n - 1), "circular": (_around, lambda n: n),
}
