"""Ops that are a line or two of other ops, under PyTorch's names.

None of them has a gradient of its own: the ops that it is made of have.
Test: tests/ops/test_every_op.py, the rows of tests/ops/samples_composed.py
"""

import math
from numbers import Number

import numpy as np

from minidl.ops.activations import elu, relu, softplus
from minidl.ops.cast import clone
from minidl.ops.dims import normalize_dims
from minidl.ops.dropout import dropout
from minidl.ops.elementwise import Step, abs, add, div, mul, neg, sub
from minidl.ops.extra.distance import pairwise_distance
from minidl.ops.extra.search import nonzero
from minidl.ops.extreme import amax
from minidl.ops.logic import bitwise_and, bitwise_xor, eq, gt, isnan, lt
from minidl.ops.matmul import matmul
from minidl.ops.select import clamp, minimum, where
from minidl.ops.shape import cat, flip, permute, reshape, stack, unbind
from minidl.ops.softmax import softmax
from minidl.random import default_generator
from minidl.tensor import Tensor, wrapped

# -- products


def mm(input, mat2):
    """(n, k), (k, m) -> (n, m)."""
    _want("mm", input, 2)
    _want("mm", mat2, 2)
    return matmul(input, mat2)


def mv(input, vec):
    """(n, k), (k,) -> (n,)."""
    _want("mv", input, 2)
    _want("mv", vec, 1)
    return matmul(input, vec)


def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """beta input + alpha mat1 @ mat2; input broadcasts to (n, m)."""
    return add(mul(input, beta), mul(mm(mat1, mat2), alpha))


def tensordot(a, b, dims=2):
    """The sum of products over the last `dims` dimensions of a and the first ones of b, or over
    dims = (dimensions of a, dimensions of b)."""
    if hasattr(dims, "__index__"):
        dims = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    over_a, over_b = (normalize_dims(tuple(d), x.ndim, "tensordot") for d, x in zip(dims, (a, b)))
    left_a = [i for i in range(a.ndim) if i not in over_a]
    left_b = [i for i in range(b.ndim) if i not in over_b]
    n = math.prod(a.shape[i] for i in over_a)
    if [a.shape[i] for i in over_a] != [b.shape[i] for i in over_b]:
        raise ValueError(f"tensordot: dimensions {over_a} of shape {tuple(a.shape)} and {over_b} "
                         "of shape "
                         f"{tuple(b.shape)} differ")
    shape_a, shape_b = [a.shape[i] for i in left_a], [b.shape[i] for i in left_b]
    a = reshape(permute(a, (*left_a, *over_a)), (math.prod(shape_a), n))
    b = reshape(permute(b, (*over_b, *left_b)), (n, math.prod(shape_b)))
    return reshape(matmul(a, b), (*shape_a, *shape_b))


def cumprod(input, dim, *, dtype=None):
    """y[i] = x[0] x[1] ... x[i] along `dim`, of integers in int64. By as many products: right also
    where there are zeros, by which no quotient helps. dtype: cast the input to it first."""
    dim, = normalize_dims(dim, input.ndim, "cumprod") or (None,)  # of 0 dimensions: 0 or -1
    if dtype is None and input.dtype.kind in "biu":
        dtype = np.int64
    input = input if dtype is None else input.to(dtype)
    if not input.ndim:
        return mul(input, 1)
    parts = list(unbind(input, dim))
    for i in range(1, len(parts)):
        parts[i] = mul(parts[i - 1], parts[i])
    return stack(parts, dim) if parts else mul(input, 1)


# -- elementwise


def clip(input, min=None, max=None):
    """Another name of clamp."""
    return clamp(input, min, max)


def trunc(input):
    """The nearest integer towards zero. Its gradient is 0, as floor's."""
    return Step.apply(input, name="trunc")


def lerp(input, end, weight):
    """input + weight (end - input): from input at weight 0 to end at 1, both exactly."""
    way = sub(end, input)
    if not isinstance(weight, Number):
        weight = wrapped(weight)
        return where(lt(abs(weight), 0.5), add(input, mul(weight, way)),
                     sub(end, mul(way, sub(1, weight))))
    return add(input, mul(way, weight)) if weight < 0.5 else sub(end, mul(way, 1 - weight))


def nan_to_num(input, nan=0.0, posinf=None, neginf=None):
    """nan and the infinities as numbers: the largest and the smallest of the dtype unless given."""
    input = wrapped(input)
    if input.dtype.kind != "f":
        return clone(input)
    limits = input._xp.finfo(input.dtype)
    posinf = float(limits.max) if posinf is None else posinf
    neginf = float(limits.min) if neginf is None else neginf
    y = where(isnan(input), nan, input)
    y = where(gt(y, float(limits.max)), posinf, y)
    return where(lt(y, float(limits.min)), neginf, y)


# -- shapes


def concat(tensors, dim=0):
    """Another name of cat."""
    return cat(tensors, dim)


def hstack(tensors):
    """Side by side: cat along dimension 1, of vectors along 0."""
    tensors = [reshape(x, (1,)) if x.ndim == 0 else x for x in tensors]
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(tensors):
    """One below the other: cat along dimension 0, vectors as rows."""
    return cat([reshape(x, (1, -1)) if x.ndim < 2 else x for x in tensors], 0)


def flipud(input):
    return flip(input, [0])


def fliplr(input):
    return flip(input, [1])


def movedim(input, source, destination):
    """Dimensions `source` go to the places `destination`; the others keep their order."""
    source = normalize_dims(source, input.ndim, "movedim")
    destination = normalize_dims(destination, input.ndim, "movedim")
    if len(source) != len(destination):
        raise ValueError(f"movedim: wants as many sources as destinations, got {source} and "
                         f"{destination}")
    order = [i for i in range(input.ndim) if i not in source]
    for place, dim in sorted(zip(destination, source)):
        order.insert(place, dim)
    return permute(input, order)


def unflatten(input, dim, sizes):
    """One dimension as several, of these sizes; one of them may be -1."""
    (dim,) = normalize_dims(dim, input.ndim, "unflatten")
    n, sizes = input.shape[dim], list(sizes)
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = n // known if known else -1
    if math.prod(sizes) != n:
        raise ValueError(f"unflatten: sizes {sizes} do not multiply to {n}, dimension {dim} of "
                         f"shape {tuple(input.shape)}")
    return reshape(input, (*input.shape[:dim], *sizes, *input.shape[dim + 1:]))


def narrow(input, dim, start, length):
    """A view of `length` slices of a dimension from `start` on."""
    (dim,) = normalize_dims(dim, input.ndim, "narrow")
    n = input.shape[dim]
    begin = start + n if start < 0 else start
    if not 0 <= begin <= begin + length <= n:
        raise IndexError(f"narrow: {length} slices from {start} on, but dimension {dim} of shape "
                         f"{tuple(input.shape)} has {n}")
    return input[(slice(None),) * dim + (slice(begin, begin + length),)]


def diff(input, n=1, dim=-1, prepend=None, append=None):
    """y[i] = x[i + 1] - x[i] along `dim`, n times; of bools, whether the two differ. prepend,
    append: what stands before and after the input."""
    parts = [x for x in (prepend, input, append) if x is not None]
    if n and len(parts) > 1:  # for no difference PyTorch puts nothing beside the input
        input = cat(parts, dim)
    input = wrapped(input)
    minus = bitwise_xor if input.dtype == bool else sub
    for _ in range(n):
        length = input.shape[dim] - 1
        if length < 0:
            break
        input = minus(narrow(input, dim, 1, length), narrow(input, dim, 0, length))
    return input


def unfold(input, dimension, size, step):
    """Windows of `size` elements along a dimension, one every `step`; a new last dimension holds
    them."""
    (dim,) = normalize_dims(dimension, input.ndim, "unfold")
    if size > input.shape[dim] or step < 1:
        raise ValueError(f"unfold: windows of {size} every {step}, but dimension {dim} of shape "
                         f"{tuple(input.shape)} has {input.shape[dim]}")
    starts = range(0, input.shape[dim] - size + 1, step)
    windows = stack([narrow(input, dim, start, size) for start in starts], dim)
    return movedim(windows, dim + 1, -1)


def expand_as(input, other):
    return input.expand(*other.shape)


def view_as(input, other):
    return input.view(other.shape)


def type_as(input, other):
    """In the dtype, and on the device, of `other`."""
    return input.to(other.device).to(other.dtype)


def argwhere(input):
    """The index of each element that is not zero: (how many, ndim) int64."""
    return nonzero(input)


def equal(input, other) -> bool:
    """Whether both have the same shape and the same elements, as a bool."""
    return input.shape == other.shape and bool((input == other).all())


def is_floating_point(input) -> bool:
    """Whether the dtype is one of floats."""
    return input.dtype.kind in "fV"


def new_zeros(input, *size, dtype=None, device=None, requires_grad=False):
    """Zeros of any shape, in the dtype and on the device of `input` unless others are given."""
    return _new(input, input._xp.zeros, size, dtype, device).requires_grad_(requires_grad)


def new_ones(input, *size, dtype=None, device=None, requires_grad=False):
    """Ones of any shape, in the dtype and on the device of `input` unless others are given."""
    return _new(input, input._xp.ones, size, dtype, device).requires_grad_(requires_grad)


def _new(input, make, size, dtype, device):
    size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    x = Tensor(make(tuple(size), input.dtype if dtype is None else dtype))
    return x.to(input.device if device is None else device)


# -- activations


def hardtanh(input, min_val=-1.0, max_val=1.0):
    """clamp, but with no gradient at the two ends themselves."""
    input = wrapped(input)
    if input.dtype.kind in "iu":  # the ends as integers, so that the result has integers
        return clamp(input, int(min_val), int(max_val))
    inside = bitwise_and(gt(input, min_val), lt(input, max_val))
    return where(inside, input, clamp(input.detach(), min_val, max_val))


def relu6(input):
    """min(max(0, x), 6)."""
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input):
    """A sigmoid of three straight lines: relu6(x + 3) / 6."""
    return div(relu6(add(input, 3)), 6)


def hardswish(input):
    """x hardsigmoid(x)."""
    return mul(input, hardsigmoid(input))


def softsign(input):
    """x / (1 + |x|)."""
    return div(input, add(abs(input), 1))


def logsigmoid(input):
    """log(1 / (1 + exp(-x))), without an overflow."""
    return neg(softplus(neg(input)))


def celu(input, alpha=1.0):
    """alpha elu(x / alpha): smooth at 0 for any alpha."""
    return mul(elu(div(input, alpha)), alpha)


def softmin(input, dim, *, dtype=None):
    """softmax(-x). dtype: cast -x to it first."""
    return softmax(neg(input), dim, dtype=dtype)


def threshold(input, threshold, value):
    """x where it is above the threshold, else value."""
    return where(gt(input, threshold), input, value)


def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1, *, generator=None):
    """A random class in a form that has a gradient: softmax((logits + g) / tau), g = -log(-log(u)).
    hard: 1 at the largest and 0 elsewhere, with the gradient of the soft one. eps: not used."""
    draw = default_generator() if generator is None else generator
    u = draw.uniform(tuple(logits.shape)) * np.float32(1 - 2.0**-23) + np.float32(2.0**-25)
    noise = -np.log(-np.log(u))  # u is neither 0 nor 1
    noise = Tensor(np.asarray(noise, logits.dtype)).to(logits.device)  # an array also if 0-d
    soft = softmax(div(add(logits, noise), tau), dim)
    if not hard:
        return soft
    one_hot = eq(soft.detach(), amax(soft.detach(), dim, keepdim=True)).to(soft.dtype)
    return add(sub(one_hot, soft.detach()), soft)


def dropout2d(input, p=0.5, training=True, *, generator=None):
    """Zero whole channels of (N, C, H, W) or (N, C, L) with probability p and scale the others by
    1 / (1 - p); the input itself when not training."""
    if input.ndim not in (3, 4):
        raise ValueError("dropout2d: wants (N, C, H, W) or (N, C, L), got shape "
                         f"{tuple(input.shape)}")
    input = wrapped(input)
    ones = new_ones(input, (*input.shape[:2], *[1] * (input.ndim - 2)))
    return mul(input, dropout(ones, p, training, generator=generator)) if training else input


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, *,
                        reduction="mean"):
    """max(0, |anchor - positive| - |anchor - negative| + margin). swap: the negative is compared
    with the positive instead, where that is nearer."""
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    loss = relu(add(sub(near, far), margin))
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"triplet_margin_loss: reduction is none, sum or mean, got {reduction!r}")
    return {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]


def pixel_shuffle(input, upscale_factor):
    """(..., c r r, h, w) -> (..., c, h r, w r): channels become pixels."""
    r = upscale_factor
    *batch, c, h, w = input.shape
    if c % (r * r):
        raise ValueError(f"pixel_shuffle: {c} channels are no multiple of {r} * {r}")
    k = len(batch)
    x = reshape(input, (*batch, c // (r * r), r, r, h, w))
    x = permute(x, (*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return reshape(x, (*batch, c // (r * r), h * r, w * r))


def _want(op, x, ndim):
    if len(x.shape) != ndim:
        raise ValueError(f"{op}: wants {ndim} dimensions here, got shape {tuple(x.shape)}; matmul "
                         "takes others")
