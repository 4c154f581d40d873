"""Bounds the size of a result before it is computed. 20 bytes of a file can ask for 2^40 numbers.

    Expand(x, [1000000, 1000000])      most("Expand", ...) -> 10^12      Refused by load.py

Each function takes the arguments of an operator, and returns an upper bound for the number of
elements of the operator's largest result. For an operator without a function, the bound is computed
from the inputs. It is the larger of two numbers: the size of the broadcast shape, as in x + y, and
the sum of the inputs' sizes.
Test: tests/infer/onnx/test_hostile.py   Used by: load.py
"""

import math

import numpy as np

from minidl import backend
from minidl.infer.onnx.operator import Refused, ints


def most(name, inputs, options):
    """Returns an upper bound for the number of elements of the operator's largest result."""
    if name in OF:
        return OF[name](*inputs, **options)
    shapes = [x.shape for x in inputs if hasattr(x, "shape")]
    if name in REDUCING:
        return max(map(math.prod, shapes), default=0)
    try:
        together = math.prod(np.broadcast_shapes(*shapes))
    except ValueError:  # the shapes do not broadcast, and some operators allow that
        together = 0
    return max(together, sum(map(math.prod, shapes)))


# The inputs of these operators are not broadcast to one shape, because some inputs are indices,
# weights or scales of channels. The bound is the size of the largest input.
REDUCING = {"GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter", "TopK",
            "BatchNormalization", "InstanceNormalization", "GroupNormalization", "CumSum",
            "CumProd", "NonZero", "Trilu", "Slice", "Reshape", "Squeeze", "Unsqueeze", "Split"}


def _matmul(a, b, *rest, **options):
    outer = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return math.prod((*outer, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())))


def _gemm(a, b, *rest, transA=0, transB=0, **options):
    (m, _), (_, n) = (x.shape[::-1] if turned else x.shape
                      for x, turned in ((a, transA), (b, transB)))
    return m * n


def _gather(x, index, *, axis=0):
    return math.prod(x.shape[:axis % x.ndim] + x.shape[axis % x.ndim + 1:]) * math.prod(index.shape)


def _einsum(*xs, equation):
    """Counts the elements of the result and of the largest operand. Returns the larger number.
    If the equation has no "->", the function counts as if the result had all labels. If the
    equation has "...", returns the product of the sizes of all operands."""
    left = equation.replace(" ", "").partition("->")[0].split(",")
    if "." in equation:
        return math.prod(math.prod(x.shape) for x in xs)
    size = {label: n for labels, x in zip(left, xs, strict=True)
            for label, n in zip(labels, x.shape, strict=True)}
    wanted = equation.replace(" ", "").partition("->")[2] or size
    return max(math.prod(size[label] for label in wanted), *(math.prod(x.shape) for x in xs))


def _pad(x, pads, value=None, axes=None, **options):
    axes, pads = range(x.ndim) if axes is None else ints(axes), ints(pads)
    shape = list(x.shape)
    for axis, before, after in zip(axes, pads[:len(axes)], pads[len(axes):], strict=True):
        shape[axis] += max(before, 0) + max(after, 0)
    return math.prod(shape)


def _range(start, limit, delta):
    return max(math.ceil((limit.item() - start.item()) / delta.item()), 0)


def _resize(x, roi=None, scales=None, sizes=None, *, axes=None, **options):
    axes = range(x.ndim) if not axes else axes
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        n = shape[axis]
        shape[axis] = max(ints(sizes)[i], n) if sizes is not None and sizes.size else max(
            math.ceil(float(scales[i]) * n), n)  # Resize changes one axis after another
        if shape[axis] * n > math.prod(x.shape) + (1 << 24) and not n <= 1:
            raise Refused(f"the matrix of {shape[axis]} x {n} weights for axis {axis} is too "
                          "large. Use smaller scales or sizes")
    return math.prod(shape)


def _window(x, kernel_shape, pads=None, dilations=None, n_channels=None):
    """Counts the elements of the padded image and of the result. Returns the larger number. All
    strides count as 1, because with a larger stride the result is smaller."""
    n = x.ndim - 2
    pads = pads or [0] * 2 * n
    if any(p < 0 for p in pads):
        raise Refused(f"got the pads {pads}; want pads of 0 or more")
    wide = [size + sum(pads[i::n]) for i, size in enumerate(x.shape[2:])]
    wide = [max(size, 2 * d * k) for size, d, k in zip(wide, dilations or [1] * n, kernel_shape)]
    return x.shape[0] * max(x.shape[1], n_channels or 0) * math.prod(wide)


def _conv(x, w, *rest, pads=None, dilations=None, **options):
    return _window(x, w.shape[2:], pads, dilations, w.shape[0])


def _qlinear_conv(x, x_scale, x_zero, w, *rest, **options):
    return _conv(x, w, **options)


def _pool(x, *, kernel_shape, pads=None, dilations=None, **options):
    return _window(x, kernel_shape, pads, dilations)


def _conv_transpose(x, w, *rest, strides=None, dilations=None, output_padding=None,
                    output_shape=None, group=1, **options):
    n = x.ndim - 2
    sizes = [(size - 1) * s + d * (k - 1) + 1 + e for size, s, d, k, e in zip(
        x.shape[2:], strides or [1] * n, dilations or [1] * n, w.shape[2:],
        output_padding or [0] * n)]
    sizes = [max(a, b) for a, b in zip(sizes, output_shape or [0] * n)]
    return x.shape[0] * max(x.shape[1], w.shape[1] * group) * math.prod(sizes)


def _recurrent(x, w, r, *rest, hidden_size, **options):
    if hidden_size != r.shape[-1]:
        raise Refused(f"hidden_size is {hidden_size}, but the weights are for {r.shape[-1]} hidden "
                      "units")
    return x.shape[0] * x.shape[1] * math.prod(w.shape[:2])


def _attention(q, k, v, mask=None, *rest, q_num_heads=1, kv_num_heads=1, **options):
    scores = math.prod(q.shape) // max(q.shape[-1], 1) * (q_num_heads or 1) * k.shape[-2]
    return max(scores, *(math.prod(x.shape) * (q_num_heads or 1) for x in (q, k, v)))


def _rows_of(x, *rest, **options):
    return math.prod(x.shape)


OF = {
    "MatMul": _matmul, "MatMulInteger": _matmul, "Gemm": _gemm, "Gather": _gather,
    "QLinearMatMul": lambda a, sa, za, b, *rest: _matmul(a, b),
    "Einsum": _einsum, "Pad": _pad, "Range": _range, "Resize": _resize,
    "Upsample": lambda x, scales, **options: _resize(x, None, scales),
    "Conv": _conv, "ConvInteger": _conv, "QLinearConv": _qlinear_conv,
    "ConvTranspose": _conv_transpose, "MaxPool": _pool, "AveragePool": _pool,
    "RNN": _recurrent, "GRU": _recurrent, "LSTM": _recurrent, "Attention": _attention,
    "RotaryEmbedding": _rows_of,
    "Expand": lambda x, shape: math.prod(np.broadcast_shapes(x.shape, ints(shape))),
    "ConstantOfShape": lambda shape, **options: math.prod(ints(shape)),
    "Tile": lambda x, repeats: math.prod(x.shape) * math.prod(ints(repeats)),
    "OneHot": lambda index, depth, values, **options: math.prod(index.shape) * int(
        np.asarray(backend.array_of(depth)).reshape(-1)[0]),
    "Split": lambda x, split=None, *, num_outputs=None, _n, **options: max(
        math.prod(x.shape), num_outputs or 0),
    "LRN": lambda x, *, size, **options: math.prod(x.shape) * size}
