"""Shape ops: the same elements in another arrangement. Backward arranges the gradient like the
input.

Most of these ops return views: the result shares the memory of the input, as in PyTorch. `reshape`
copies only if there is no such view, and `view` never copies. `cat`, `stack`, `flip` and `repeat`
always copy.
Test: tests/ops/test_shape.py
"""

import functools
import math

import numpy as np

from minidl import backend
from minidl.function import Function
from minidl.ops.dims import normalize_dims, sizes
from minidl.tensor import Tensor


class Reshape(Function):
    """The same elements, in row-major order, in another shape. One size may be -1."""
    arithmetic = False

    def forward(self, x, shape, name="reshape"):
        self.name, self.shape = name, x.shape
        y = x.reshape(shape)
        if name == "view" and x.size and not backend.same_memory(y, x):
            raise ValueError(f"view: a tensor of shape {x.shape} with strides of {x.strides} bytes "
                             f"cannot get the shape {y.shape} without a copy; use reshape")
        return y

    def backward(self, gy):
        return gy.reshape(self.shape)


class Permute(Function):
    """Changes the order of the dimensions: y[i_dims[0], i_dims[1], ...] = x[i_0, i_1, ...]."""
    arithmetic = False

    def forward(self, x, dims, name="permute"):
        self.name = name
        self.dims = normalize_dims(dims, x.ndim, name)
        return x.transpose(self.dims)

    def backward(self, gy):
        return gy.transpose(tuple(np.argsort(self.dims)))


class Expand(Function):
    """Repeats dimensions of size 1 without a copy (stride 0). The backward walk sums the gradients
    of the repeats, as for every broadcast input."""
    arithmetic = False

    def forward(self, x, shape, name):
        self.name = name
        lead = len(shape) - x.ndim
        return self.xp.broadcast_to(x, tuple(
            x.shape[i - lead] if n == -1 and i >= lead else n for i, n in enumerate(shape)))

    def backward(self, gy):
        return gy


class Flip(Function):
    """x with the order along `dims` reversed."""
    arithmetic = False

    def forward(self, x, dims):
        self.dims = normalize_dims(dims, x.ndim, "flip")
        return self.xp.flip(x, self.dims).copy()

    def backward(self, gy):
        return self.xp.flip(gy, self.dims)


class Cat(Function):
    """Tensors one after another along `dim`. The sizes of all other dimensions must be equal."""
    arithmetic = False

    def forward(self, *xs, dim):
        xs = _promoted(self, xs)
        if xs[0].ndim == 0:
            raise ValueError("cat: wants tensors of at least one dimension; got 0-d tensors. Use "
                             "stack")
        (self.dim,) = normalize_dims(dim, xs[0].ndim, "cat")
        self.bounds = np.cumsum([x.shape[self.dim] for x in xs])[:-1].tolist()
        return self.xp.concatenate(xs, axis=self.dim)

    def backward(self, gy):
        return tuple(self.xp.split(gy, self.bounds, axis=self.dim))


class Stack(Function):
    """Tensors of one shape along a new dimension `dim`."""
    arithmetic = False

    def forward(self, *xs, dim):
        xs = _promoted(self, xs)
        (self.dim,) = normalize_dims(dim, xs[0].ndim + 1, "stack")
        return self.xp.stack(xs, axis=self.dim)

    def backward(self, gy):
        return tuple(self.xp.moveaxis(gy, self.dim, 0))


class Split(Function):
    """Views along `dim`, one for each size in `parts`. Backward is one concatenation."""
    arithmetic = False

    def forward(self, x, parts, dim):
        self.dim = dim
        return tuple(self.xp.split(x, np.cumsum(parts)[:-1].tolist(), axis=dim))

    def backward(self, *gys):
        return self.xp.concatenate(gys, axis=self.dim)


class Unbind(Function):
    """One view for each index of `dim`, without this dimension. Backward stacks the gradients."""
    arithmetic = False

    def forward(self, x, dim):
        (self.dim,) = normalize_dims(dim, x.ndim, "unbind")
        return tuple(self.xp.moveaxis(x, self.dim, 0))

    def backward(self, *gys):
        return self.xp.stack(gys, axis=self.dim)


class Pad(Function):
    """x with constant borders. A negative width removes elements. Backward removes the borders.
    Elements that forward removed get the gradient 0."""
    arithmetic = False

    def forward(self, x, pad, value):
        if len(pad) % 2 or len(pad) > 2 * x.ndim:
            raise ValueError(f"pad: wants two widths for the last dimension, then two for the "
                             f"dimension before it, and so on; got {pad} for a tensor of {x.ndim} "
                             "dimensions")
        widths = [(0, 0)] * (x.ndim - len(pad) // 2) + list(zip(pad[-2::-2], pad[-1::-2]))
        shape = tuple(n + before + after for n, (before, after) in zip(x.shape, widths))
        if min(shape, default=0) < 0:
            raise ValueError(f"pad: no size may become negative; got {pad}, which turns shape "
                             f"{x.shape} into {shape}")
        self.to = tuple(slice(max(b, 0), n - max(a, 0)) for n, (b, a) in zip(shape, widths))
        self.of = tuple(slice(max(-b, 0), n - max(-a, 0)) for n, (b, a) in zip(x.shape, widths))
        self.shape = x.shape
        y = self.xp.full(shape, value, x.dtype)
        y[self.to] = x[self.of]
        return y

    def backward(self, gy):
        gx = self.xp.zeros(self.shape, gy.dtype)
        gx[self.of] = gy[self.to]
        return gx


def _promoted(node, xs):
    """Returns the arrays cast to their common dtype. In cat and stack, 0-d arrays count like all
    other arrays, as in PyTorch. Raises ValueError if there are no arrays."""
    if not xs:
        raise ValueError(f"{type(node).__name__.lower()}: wants at least one tensor; got none")
    dtype = functools.reduce(backend.promote_types, [x.dtype for x in xs])
    return [x.astype(dtype, copy=False) for x in xs]


def reshape(input, *shape):
    return Reshape.apply(input, shape=sizes(shape))


def view(input, *shape):
    """Does the same as reshape, but the result always shares the memory of the input. Raises
    ValueError if this is not possible with the input's strides."""
    return Reshape.apply(input, shape=sizes(shape), name="view")


def flatten(input, start_dim=0, end_dim=-1):
    """Joins the dimensions from start_dim to end_dim into one."""
    if input.ndim == 0:
        return Reshape.apply(input, shape=(1,), name="flatten")
    (start,) = normalize_dims(start_dim, input.ndim, "flatten")
    (end,) = normalize_dims(end_dim, input.ndim, "flatten")
    if start > end:
        raise ValueError("flatten: start_dim must not come after end_dim; got "
                         f"start_dim={start_dim}, end_dim={end_dim}")
    shape = (*input.shape[:start], math.prod(input.shape[start:end + 1]), *input.shape[end + 1:])
    return Reshape.apply(input, shape=shape, name="flatten")


def squeeze(input, dim=None):
    """Removes all dimensions of size 1, or only the dimensions in `dim` if they have size 1."""
    axes = normalize_dims(dim, input.ndim, "squeeze")
    shape = tuple(n for i, n in enumerate(input.shape) if n != 1 or i not in axes)
    return Reshape.apply(input, shape=shape, name="squeeze")


def unsqueeze(input, dim):
    """Adds a dimension of size 1 at position `dim` of the result."""
    (axis,) = normalize_dims(dim, input.ndim + 1, "unsqueeze")
    shape = (*input.shape[:axis], 1, *input.shape[axis:])
    return Reshape.apply(input, shape=shape, name="unsqueeze")


def permute(input, *dims):
    dims = sizes(dims)
    if len(dims) != input.ndim:
        raise ValueError(f"permute: wants {input.ndim} dims for shape {tuple(input.shape)}, got "
                         f"{dims}")
    return Permute.apply(input, dims=dims)


def transpose(input, dim0, dim1):
    """Swaps two dimensions. To reorder all dimensions, as NumPy's transpose does, use `permute`."""
    dims = list(range(input.ndim))
    (a,), (b,) = (normalize_dims(d, input.ndim, "transpose") or (0,) for d in (dim0, dim1))
    if dims:
        dims[a], dims[b] = b, a
    return Permute.apply(input, dims=tuple(dims), name="transpose")


swapaxes = transpose


def t(input):
    """Returns the transpose of a matrix. Vectors and 0-d tensors do not change."""
    if input.ndim > 2:
        raise ValueError(f"t: wants at most 2 dimensions, got shape {tuple(input.shape)}; use .mT")
    return Permute.apply(input, dims=tuple(reversed(range(input.ndim))), name="t")


def matrix_transpose(input):
    """x.mT: x with the last two dimensions swapped."""
    if input.ndim < 2:
        raise ValueError(f"mT: wants at least 2 dimensions, got shape {tuple(input.shape)}")
    return transpose(input, -2, -1)


def expand(input, *shape):
    """Returns a view in which dimensions of size 1 are repeated to `shape`. Where `shape` has -1,
    the size does not change."""
    return Expand.apply(input, shape=sizes(shape), name="expand")


def broadcast_to(input, shape):
    return Expand.apply(input, shape=tuple(shape), name="broadcast_to")


def repeat(input, *repeats):
    """Returns the input, repeated repeats[i] times along each dimension i."""
    repeats = sizes(repeats)
    if len(repeats) < input.ndim:
        raise ValueError(f"repeat: wants at least {input.ndim} numbers, one for each dimension; "
                         f"got {repeats}")
    shape = (1,) * (len(repeats) - input.ndim) + input.shape
    once = [n for size in shape for n in (1, size)]  # (1, n0, 1, n1, ...)
    often = [n for pair in zip(repeats, shape) for n in pair]  # (r0, n0, r1, n1, ...)
    tiled = input.reshape(once).expand(often).clone()  # a copy, as expand only sets strides to 0
    return tiled.reshape([r * n for r, n in zip(repeats, shape)])


def cat(tensors, dim=0):
    """Joins tensors one after another along `dim`. A tensor of shape (0,) is left out, even if the
    other tensors have more dimensions. So a loop can start from an empty tensor."""
    if any(x.shape == (0,) for x in tensors):
        tensors = [x for x in tensors if x.shape != (0,)] or tensors[:1]
    return Cat.apply(*tensors, dim=dim)


def stack(tensors, dim=0):
    return Stack.apply(*tensors, dim=dim)


def split(tensor, split_size_or_sections, dim=0) -> tuple[Tensor, ...]:
    """Returns a tuple of views along `dim`. split_size_or_sections: the size of each view (the last
    view may be smaller), or a list with the sizes of all views."""
    (dim,) = normalize_dims(dim, tensor.ndim, "split")
    n, parts = tensor.shape[dim], split_size_or_sections
    if hasattr(parts, "__index__"):
        if parts < 1:
            raise ValueError(f"split: wants a size of at least 1, got {parts}")
        parts = [min(parts, n - start) for start in range(0, n, parts)] or [0]
    elif sum(parts) != n:
        raise ValueError(f"split: the sizes {list(parts)} sum to {sum(parts)}; want {n}, the size "
                         f"of dimension {dim} of shape {tuple(tensor.shape)}")
    return Split.apply(tensor, parts=parts, dim=dim)


def chunk(input, chunks, dim=0) -> tuple[Tensor, ...]:
    """Returns a tuple of views along `dim`, each of size ceil(n / chunks). The last view may be
    smaller. There may be fewer than `chunks` views."""
    if chunks < 1:
        raise ValueError(f"chunk: wants at least 1 chunk, got {chunks}")
    (dim,) = normalize_dims(dim, input.ndim, "chunk")
    n = input.shape[dim]
    return split(input, -(-n // chunks) if n else [0] * chunks, dim)


def unbind(input, dim=0) -> tuple[Tensor, ...]:
    """Returns a tuple of all slices along `dim`, without that dimension."""
    return Unbind.apply(input, dim=dim)


def flip(input, *args, dims=None):
    """Returns a copy with the order along the dims reversed. The dims can be passed in three ways:
    flip(0, 1), flip((0, 1)) or flip(dims=(0, 1))."""
    if bool(args) == (dims is not None):
        raise TypeError("flip: wants the dims in one of three ways: flip(0, 1), flip((0, 1)) or "
                        "flip(dims=(0, 1))")
    return Flip.apply(input, dims=sizes(args or (dims,)))
