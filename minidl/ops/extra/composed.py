"""Ops that are written with a few other ops, with PyTorch's names.

They need no backward of their own, because the other ops have one.
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
    """The matrix product (n, k), (k, m) -> (n, m)."""
    _want("mm", "input", input, 2)
    _want("mm", "mat2", mat2, 2)
    return matmul(input, mat2)


def mv(input, vec):
    """A matrix times a vector: (n, k), (k,) -> (n,)."""
    _want("mv", "input", input, 2)
    _want("mv", "vec", vec, 1)
    return matmul(input, vec)


def addmm(input, mat1, mat2, *, beta=1, alpha=1):
    """beta * input + alpha * (mat1 @ mat2). input broadcasts to (n, m)."""
    return add(mul(input, beta), mul(mm(mat1, mat2), alpha))


def tensordot(a, b, dims=2):
    """The sum of products over the last `dims` dimensions of a and the first `dims` dimensions of
    b. dims may also be a pair: (dimensions of a, dimensions of b)."""
    if hasattr(dims, "__index__"):
        dims = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    over_a, over_b = (normalize_dims(tuple(d), x.ndim, "tensordot") for d, x in zip(dims, (a, b)))
    left_a = [i for i in range(a.ndim) if i not in over_a]
    left_b = [i for i in range(b.ndim) if i not in over_b]
    n = math.prod(a.shape[i] for i in over_a)
    if [a.shape[i] for i in over_a] != [b.shape[i] for i in over_b]:
        raise ValueError(f"tensordot: dimensions {over_a} of shape {tuple(a.shape)} must have the "
                         f"same sizes as dimensions {over_b} of shape {tuple(b.shape)}")
    shape_a, shape_b = [a.shape[i] for i in left_a], [b.shape[i] for i in left_b]
    a = reshape(permute(a, (*left_a, *over_a)), (math.prod(shape_a), n))
    b = reshape(permute(b, (*over_b, *left_b)), (n, math.prod(shape_b)))
    return reshape(matmul(a, b), (*shape_a, *shape_b))


def cumprod(input, dim, *, dtype=None):
    """y[i] = x[0] x[1] ... x[i] along `dim`. Integers give int64. dtype: if given, the input is
    cast to it first. Each step is a product, so the gradient is correct even if elements are 0."""
    dim, = normalize_dims(dim, input.ndim, "cumprod") or (None,)  # a 0-d input takes dim 0 or -1
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
    """Rounds towards zero. The gradient is 0, as for floor."""
    return Step.apply(input, name="trunc")


def lerp(input, end, weight):
    """input + weight * (end - input). If weight is 0, the result is exactly input. If weight is 1,
    the result is exactly end."""
    way = sub(end, input)
    if not isinstance(weight, Number):
        weight = wrapped(weight)
        return where(lt(abs(weight), 0.5), add(input, mul(weight, way)),
                     sub(end, mul(way, sub(1, weight))))
    return add(input, mul(way, weight)) if weight < 0.5 else sub(end, mul(way, 1 - weight))


def nan_to_num(input, nan=0.0, posinf=None, neginf=None):
    """Replaces nan and the infinities by numbers. The defaults of posinf and neginf are the largest
    and the smallest number of the dtype."""
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
    """Joins tensors along dimension 1. Joins vectors along dimension 0."""
    tensors = [reshape(x, (1,)) if x.ndim == 0 else x for x in tensors]
    return cat(tensors, 0 if tensors[0].ndim == 1 else 1)


def vstack(tensors):
    """Joins tensors along dimension 0. Vectors count as rows."""
    return cat([reshape(x, (1, -1)) if x.ndim < 2 else x for x in tensors], 0)


def flipud(input):
    return flip(input, [0])


def fliplr(input):
    return flip(input, [1])


def movedim(input, source, destination):
    """Moves the dimensions `source` to the places `destination`. The other dimensions keep their
    order."""
    source = normalize_dims(source, input.ndim, "movedim")
    destination = normalize_dims(destination, input.ndim, "movedim")
    if len(source) != len(destination):
        raise ValueError(f"movedim: wants one destination for each source, got {source} and "
                         f"{destination}")
    order = [i for i in range(input.ndim) if i not in source]
    for place, dim in sorted(zip(destination, source)):
        order.insert(place, dim)
    return permute(input, order)


def unflatten(input, dim, sizes):
    """Splits one dimension into several dimensions of these sizes. If a size is -1, it is computed
    from the other sizes."""
    (dim,) = normalize_dims(dim, input.ndim, "unflatten")
    n, sizes = input.shape[dim], list(sizes)
    if sizes.count(-1) == 1:
        known = -math.prod(sizes)
        sizes[sizes.index(-1)] = n // known if known else -1
    if math.prod(sizes) != n:
        raise ValueError(f"unflatten: the product of the sizes must be {n}, because dimension "
                         f"{dim} of shape {tuple(input.shape)} has this size; got sizes {sizes}")
    return reshape(input, (*input.shape[:dim], *sizes, *input.shape[dim + 1:]))


def narrow(input, dim, start, length):
    """Returns a view of `length` slices of dimension `dim`, from `start` on."""
    (dim,) = normalize_dims(dim, input.ndim, "narrow")
    n = input.shape[dim]
    begin = start + n if start < 0 else start
    if not 0 <= begin <= begin + length <= n:
        raise IndexError(f"narrow: wanted {length} slices from slice {start} on, but dimension "
                         f"{dim} of shape {tuple(input.shape)} has only {n} slices")
    return input[(slice(None),) * dim + (slice(begin, begin + length),)]


def diff(input, n=1, dim=-1, prepend=None, append=None):
    """y[i] = x[i + 1] - x[i] along `dim`, repeated n times. For bools, y[i] is True where x[i + 1]
    and x[i] differ. prepend, append: tensors that are first joined to the beginning and to the end
    of the input, or None."""
    parts = [x for x in (prepend, input, append) if x is not None]
    if n and len(parts) > 1:  # for n = 0 PyTorch joins nothing
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
    """Returns windows of `size` elements along a dimension. A window begins at every `step`-th
    element. The elements of a window are in a new last dimension."""
    (dim,) = normalize_dims(dimension, input.ndim, "unfold")
    if size > input.shape[dim] or step < 1:
        raise ValueError(f"unfold: wants step >= 1, and a size of at most {input.shape[dim]} for "
                         f"dimension {dim} of shape {tuple(input.shape)}; got size={size}, "
                         f"step={step}")
    starts = range(0, input.shape[dim] - size + 1, step)
    windows = stack([narrow(input, dim, start, size) for start in starts], dim)
    return movedim(windows, dim + 1, -1)


def expand_as(input, other):
    return input.expand(*other.shape)


def view_as(input, other):
    return input.view(other.shape)


def type_as(input, other):
    """Returns the input in the dtype, and on the device, of `other`."""
    return input.to(other.device).to(other.dtype)


def argwhere(input):
    """Returns the index of each element that is not zero: (n, ndim) int64, where n is the number of
    these elements."""
    return nonzero(input)


def equal(input, other) -> bool:
    """Returns True if input and other have the same shape and the same elements."""
    return input.shape == other.shape and bool((input == other).all())


def is_floating_point(input) -> bool:
    """Returns True if the dtype is floating."""
    return input.dtype.kind in "fV"


def new_zeros(input, *size, dtype=None, device=None, requires_grad=False):
    """Returns zeros of shape `size`. dtype, device: the defaults are the dtype and the device of
    `input`."""
    return _new(input, input._xp.zeros, size, dtype, device).requires_grad_(requires_grad)


def new_ones(input, *size, dtype=None, device=None, requires_grad=False):
    """Returns ones of shape `size`. dtype, device: the defaults are the dtype and the device of
    `input`."""
    return _new(input, input._xp.ones, size, dtype, device).requires_grad_(requires_grad)


def _new(input, make, size, dtype, device):
    size = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    x = Tensor(make(tuple(size), input.dtype if dtype is None else dtype))
    return x.to(input.device if device is None else device)


# -- activations


def hardtanh(input, min_val=-1.0, max_val=1.0):
    """Limits elements to the range from min_val to max_val. In contrast to clamp, the gradient is 0
    where an element equals a limit."""
    input = wrapped(input)
    if input.dtype.kind in "iu":  # integer limits, so that the result has integers
        return clamp(input, int(min_val), int(max_val))
    inside = bitwise_and(gt(input, min_val), lt(input, max_val))
    return where(inside, input, clamp(input.detach(), min_val, max_val))


def relu6(input):
    """min(max(0, x), 6)."""
    return hardtanh(input, 0.0, 6.0)


def hardsigmoid(input):
    """relu6(x + 3) / 6, a sigmoid that is made of three straight lines."""
    return div(relu6(add(input, 3)), 6)


def hardswish(input):
    """x * hardsigmoid(x)."""
    return mul(input, hardsigmoid(input))


def softsign(input):
    """x / (1 + |x|)."""
    return div(input, add(abs(input), 1))


def logsigmoid(input):
    """log(1 / (1 + exp(-x))), in a form that cannot overflow."""
    return neg(softplus(neg(input)))


def celu(input, alpha=1.0):
    """alpha * elu(x / alpha). It is smooth at 0 for any alpha."""
    return mul(elu(div(input, alpha)), alpha)


def softmin(input, dim, *, dtype=None):
    """softmax(-x) along `dim`. dtype: if given, -x is cast to it first."""
    return softmax(neg(input), dim, dtype=dtype)


def threshold(input, threshold, value):
    """x where x is above the threshold, else value."""
    return where(gt(input, threshold), input, value)


def gumbel_softmax(logits, tau=1, hard=False, eps=1e-10, dim=-1, *, generator=None):
    """softmax((logits + g) / tau), where g = -log(-log(u)) and u is uniform in (0, 1). This is a
    random choice of a class, and the choice has a gradient. hard: if True, the result is 1 at the
    largest element and 0 elsewhere. The gradient is still the gradient of the softmax. eps:
    ignored."""
    draw = default_generator() if generator is None else generator
    u = draw.uniform(tuple(logits.shape)) * np.float32(1 - 2.0**-23) + np.float32(2.0**-25)
    noise = -np.log(-np.log(u))  # finite, because u is never 0 or 1
    # asarray, because `noise` is a scalar if logits is 0-d
    noise = Tensor(np.asarray(noise, logits.dtype)).to(logits.device)
    soft = softmax(div(add(logits, noise), tau), dim)
    if not hard:
        return soft
    one_hot = eq(soft.detach(), amax(soft.detach(), dim, keepdim=True)).to(soft.dtype)
    return add(sub(one_hot, soft.detach()), soft)


def dropout2d(input, p=0.5, training=True, *, generator=None):
    """Sets whole channels of (N, C, H, W) or (N, C, L) to zero with probability p. Multiplies all
    other channels by 1 / (1 - p). Returns the input itself if training is False."""
    if input.ndim not in (3, 4):
        raise ValueError("dropout2d: wants (N, C, H, W) or (N, C, L), got shape "
                         f"{tuple(input.shape)}")
    input = wrapped(input)
    ones = new_ones(input, (*input.shape[:2], *[1] * (input.ndim - 2)))
    return mul(input, dropout(ones, p, training, generator=generator)) if training else input


def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2.0, eps=1e-6, swap=False, *,
                        reduction="mean"):
    """max(0, |anchor - positive| - |anchor - negative| + margin). |v| is the p-norm of v. swap: if
    True, the second norm is the smaller of |anchor - negative| and |positive - negative|."""
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = minimum(far, pairwise_distance(positive, negative, p, eps))
    loss = relu(add(sub(near, far), margin))
    if reduction not in ("none", "sum", "mean"):
        raise ValueError("triplet_margin_loss: reduction must be 'none', 'sum' or 'mean'; got "
                         f"{reduction!r}")
    return {"none": loss, "sum": loss.sum(), "mean": loss.mean()}[reduction]


def pixel_shuffle(input, upscale_factor):
    """Turns channels into pixels: (..., c r r, h, w) -> (..., c, h r, w r), where r is
    upscale_factor."""
    r = upscale_factor
    *batch, c, h, w = input.shape
    if c % (r * r):
        raise ValueError("pixel_shuffle: the number of channels must be divisible by "
                         f"upscale_factor squared, {r * r}; got {c} channels")
    k = len(batch)
    x = reshape(input, (*batch, c // (r * r), r, r, h, w))
    x = permute(x, (*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return reshape(x, (*batch, c // (r * r), h * r, w * r))


def _want(op, name, x, ndim):
    if len(x.shape) != ndim:
        raise ValueError(f"{op}: wants {name} with {ndim} dimension{'s' * (ndim > 1)}, got shape "
                         f"{tuple(x.shape)}. Use matmul for other shapes")
