"""Adds launches of quantized layers (quantize.py). The kernels are in kernels/cpu/infer_int8.cuh.

    linear_int8      1. finds the range of x, unless the range was calibrated  2. rounds x to 8 bits
                     3. computes the product
    conv_int8_nhwc   1. rounds x to 8 bits  2. copies the patches: for each pixel of the result, a
                     row of the pixels under the filter (a quarter of the bytes of float patches)
                     3. computes the product as linear_int8 does
    linear_weights   computes the product. The weights become float in a register

Test: tests/infer/test_quantize.py
"""

import math

import numpy as np

from minidl.infer import lower
from minidl.infer.graph import Value
from minidl.infer.quantize import GROUP, scale_of

# A row of weights has k numbers. FOUR: the numbers in one lane of an instruction. TILE: the numbers
# in one row of an AMX tile.
FOUR, TILE = 4, 64
ROWS = 96  # the most rows of x in a block, a multiple of the rows of every tile
PANEL = 64  # the columns of a panel, as in kernels/cpu/infer_int8.cuh


def panels(q):
    """Cuts q (n, k) int8 into panels of 64 rows, and transposes each panel. Returns an array
    (number of panels, k, 64). If fewer than 64 rows are left for the last panel, zeros fill it
    up."""
    n, k = q.shape
    padded = np.zeros((-(-n // PANEL) * PANEL, k), np.int8)
    padded[:n] = q
    return padded.reshape(-1, PANEL, k).swapaxes(1, 2)


def by_four(q):
    """Packs q (n, k) for an int8 product. Returns (the packed array, wide). `wide` is k, rounded up
    to a multiple of TILE. Zeros fill up each row of q to this width. The array has the shape
    (number of panels, wide / 4, 64, 4), so four neighbouring numbers of a row of q lie next to each
    other."""
    wide = -(-q.shape[1] // TILE) * TILE
    p = panels(np.pad(q, ((0, 0), (0, wide - q.shape[1]))))
    return np.ascontiguousarray(p.reshape(len(p), wide // FOUR, FOUR, -1).swapaxes(2, 3)), wide


def by_bits(q, bits):
    """Packs the weights q (n, k) of a linear_weights line. With 8 bits the result has the shape
    (number of panels, k, 64). With 4 bits it has the shape (number of panels, k / 2, 64). In this
    case 8 is added to each weight, and one byte holds two neighbouring weights of a row."""
    p = panels(q)
    if bits == 8:
        return np.ascontiguousarray(p)
    p = (p + 8).astype(np.uint8)
    return np.ascontiguousarray(p[:, ::2] | p[:, 1::2] << 4).view(np.int8)


def _parts(low, node):
    """Returns the sizes of a product: a tuple (m, n, k, number of blocks, steps). x has m rows, and
    the weights have the shape (n, k). A block computes up to ROWS rows. `steps` is the result of
    lower.steps_of. Returns None if the line must run as an eager op."""
    x, w, _, bias = node.inputs[:4]
    if x.dtype != np.float32 or not x.n_bytes or bias is not None and not lower.is_constant(bias):
        return None
    found = lower.steps_of(low, node, node.output.shape, bias)
    m = math.prod(node.output.shape[:-1])
    return found and (m, w.shape[0], math.prod(w.shape[1:]), -(-m // ROWS), found)


def _product(low, node, call, first, args, parts):
    """Adds the launch of a product. Returns True.

    args: [(C declaration, argument)] of the launch, without the result and without the operands of
    the steps.
    call: C++ text that calls the kernel's loop, without the call's last arguments.
    first: a C++ expression that turns `sum` into a float.
    parts: the result of _parts."""
    m, n, _, blocks, (text, result, more) = parts
    body = [f"  const int first = blockIdx.x * {ROWS}, last = min(first + {ROWS}, {m});",
            f"  {call}, first, last, blockIdx.y,",
            f"      [=](auto sum, int row, int col) {{ float {lower.SINK} = {first};",
            f"        const long long at = (long long)row * {n} + col;",
            *("        " + line for line in text), f"        out[at] = {result};", "      });"]
    args = [("float* out", low.own(node.output)), *args, *more]
    return low.add(node.op, [node.output], "\n".join(body), args,
                   (blocks, -(-n // PANEL)))


def linear_int8(low, node):
    """Adds the launches of a linear_int8 line. Returns False if the line must run as an eager
    op."""
    if (parts := _parts(low, node)) is None:
        return False
    x, w = node.inputs[:2]
    m, _, k, *_ = parts
    packed, wide = by_four(w.array)
    x, q = low.contiguous(x), low.own(Value((m, wide), np.uint8))
    if node.attributes["limits"] is None:
        range_ = low.own(Value((2,), np.float32))
        low.add("range", [range_], f"  range_of(scale, a, {m * k});",
                [("float* scale", range_), ("const float* a", x)], 1)
    else:
        range_ = np.array(scale_of(*node.attributes["limits"]), np.float32)
    _quantize(low, q, x, range_, m, k, wide)
    return _product_int8(low, node, q, w.array, packed, wide, range_, parts)


def _quantize(low, q, x, range_, m, k, wide):
    """Adds the launch that rounds x (m, k) to q (m, wide) uint8. range_: an array or a Value that
    holds the scale and the zero point."""
    row = f"quantize_row<{k}, {wide}>(q + r * {wide}LL, a + r * {k}LL, scale[0], scale[1]);"
    low.add("quantize", [q], f"  const int r = blockIdx.x;\n  {row}",
            [("unsigned char* q", q), ("const float* a", x), ("const float* scale", range_)], m)


def _product_int8(low, node, q, w, packed, wide, range_, parts):
    """Adds the launch that multiplies q by the transposed w (n, k). q has the shape (m, wide): each
    row has k numbers, padded to `wide` numbers. packed: the array that by_four made of w."""
    n, k = w.shape
    first = "(float)(sum - ((int)scale[1] - SHIFT) * w_sum[col]) * (scale[0] * w_scale[col])"
    args = [("const unsigned char* q", q), ("const signed char* w", packed),
            ("const int* w_sum", w.sum(1, dtype=np.int32)),
            ("const float* w_scale", np.ascontiguousarray(node.inputs[2].array[:, 0])),
            ("const float* scale", range_)]
    call = f"int8_linear<{parts[0]}, {n}, {k}, {wide}>(out, q, w"
    return _product(low, node, call, first, args, parts)


def conv_int8(low, node):
    """Adds the launches of a conv_int8_nhwc line. Returns False if the line must run as an eager
    op."""
    if node.pad or (parts := _parts(low, node)) is None:
        return False
    x, w = node.inputs[:2]
    (n, h, wide_x, c), (_, oh, ow, _), o = x.shape, node.output.shape, node.attributes
    matrix = np.ascontiguousarray(w.array.transpose(0, 2, 3, 1)).reshape(len(w.array), -1)
    packed, wide = by_four(matrix)
    scale, zero = scale_of(*o["limits"])
    q = low.own(Value(x.shape, np.uint8))
    rows = low.own(Value((parts[0], wide), np.uint8))
    range_ = np.array((scale, zero), np.float32)
    _quantize(low, q, low.contiguous(x), range_, n * h, wide_x * c, wide_x * c)
    sizes = (ow, h, wide_x, c, *w.shape[2:], *o["stride"], o["padding"][0][0], o["padding"][1][0],
             wide)
    low.add("patches", [rows], "  const long long h = blockIdx.x, n = blockIdx.y;\n"
            f"  patches_row<{', '.join(map(str, sizes))}>(\n"
            f"      rows + (n * {oh} + h) * {ow * wide}, q + n * {h * wide_x * c}, h,\n"
            f"      {int(zero)});",
            [("unsigned char* rows", rows), ("const unsigned char* q", q)], (oh, n))
    return _product_int8(low, node, rows, matrix, packed, wide, range_, parts)


def linear_weights(low, node):
    """Adds the launch of a linear_weights line. Returns False if the line must run as an eager
    op."""
    bits, k = node.attributes["bits"], node.inputs[1].shape[1]
    if bits == 4 and k % GROUP or (parts := _parts(low, node)) is None:
        return False
    x, w, w_scale, _ = node.inputs[:4]
    n, groups = w_scale.shape
    scale = np.zeros((-(-n // PANEL) * PANEL, groups), np.float32)
    scale[:n] = w_scale.array
    scale = np.ascontiguousarray(scale.reshape(-1, PANEL, groups).swapaxes(1, 2))
    group = k if bits == 8 else GROUP
    args = [("const float* a", low.contiguous(x)), ("const signed char* w", by_bits(w.array, bits)),
            ("const float* scale", scale)]
    call = f"weights_linear<{bits}, {n}, {k}, {group}>(a, w, scale"
    return _product(low, node, call, "sum", args, parts)


LOWER = {"linear_int8": linear_int8, "conv_int8_nhwc": conv_int8,
         "linear_weights": linear_weights}
