"""Launches of linear layers in whole numbers (quantize.py), on kernels/infer_int8.cuh.

    linear_int8      the range of x, where it was not calibrated; x in 8 bits; the product
    linear_weights   the product: weights become float in a register

Test: tests/infer/test_quantize.py
"""

import math

import numpy as np

from minidl.infer import lower
from minidl.infer.graph import Value
from minidl.infer.quantize import GROUP, scale_of

FOUR, TILE = 4, 64  # values of k: of a lane of one instruction, of a row of a tile (AMX)


def panels(q, most=lower.PANEL):
    """(n, k) int8 as (panels, k, 64), zeros in the columns beyond n."""
    n, k = q.shape
    padded = np.zeros((-(-n // most) * most, k), np.int8)
    padded[:n] = q
    return padded.reshape(-1, most, k).swapaxes(1, 2)


def by_four(q):
    """(the panels of an int8 product: a column's values of k in fours side by side; the width of
    a row, zeros at its end)."""
    wide = -(-q.shape[1] // TILE) * TILE
    p = panels(np.pad(q, ((0, 0), (0, wide - q.shape[1]))))
    return np.ascontiguousarray(p.reshape(len(p), wide // FOUR, FOUR, -1).swapaxes(2, 3)), wide


def by_bits(q, bits):
    """The panels of weights: of 4 bits, two values of k to a byte, each 8 too large."""
    p = panels(q)
    if bits == 8:
        return np.ascontiguousarray(p)
    p = (p + 8).astype(np.uint8)
    return np.ascontiguousarray(p[:, ::2] | p[:, 1::2] << 4).view(np.int8)


def _parts(low, node):
    """(rows, n, k, blocks of rows, what follows the product) of a line, or None."""
    x, w, _, bias = node.inputs[:4]
    if x.dtype != np.float32 or not x.n_bytes or bias is not None and not lower.is_constant(bias):
        return None
    found = lower.steps_of(low, node, node.output.shape, bias)
    m = math.prod(x.shape[:-1])
    return found and (m, *w.shape, -(-m // lower.ROWS), found)


def _product(low, node, call, first, args, parts):
    """The launch: `call` is C++ up to the function of (sum, row, col), `first` makes x of it."""
    m, n, _, blocks, (text, result, more) = parts
    each = -(-m // blocks // 32) * 32  # rows of two tiles
    body = [f"  const int first = blockIdx.x * {each}, last = min(first + {each}, {m});",
            f"  {call}, first, last, blockIdx.y,",
            f"      [=](auto sum, int row, int col) {{ float {lower.SINK} = {first};",
            f"        const long long at = (long long)row * {n} + col;",
            *("        " + line for line in text), f"        out[at] = {result};", "      });"]
    args = [("float* out", low.own(node.output)), *args, *more]
    return low.add(node.op, [node.output], "\n".join(body), args,
                   (blocks, -(-n // lower.PANEL)))


def linear_int8(low, node):
    if (parts := _parts(low, node)) is None:
        return False
    x, w, w_scale, _ = node.inputs[:4]
    m, n, k, *_ = parts
    packed, wide = by_four(w.data)
    x, q = low.contiguous(x), low.own(Value((m, wide), np.uint8))
    if node.attributes["limits"] is None:
        range_ = low.own(Value((2,), np.float32))
        low.add("range", [range_], f"  range_of(scale, a, {m * k});",
                [("float* scale", range_), ("const float* a", x)], 1)
    else:
        range_ = np.array(scale_of(*node.attributes["limits"]), np.float32)
    row = f"quantize_row<{k}, {wide}>(q + r * {wide}LL, a + r * {k}LL, scale[0], scale[1]);"
    low.add("quantize", [q], f"  const int r = blockIdx.x;\n  {row}",
            [("unsigned char* q", q), ("const float* a", x), ("const float* scale", range_)], m)
    first = "(float)(sum - (int)scale[1] * w_sum[col]) * (scale[0] * w_scale[col])"
    args = [("const unsigned char* q", q), ("const signed char* w", packed),
            ("const int* w_sum", w.data.sum(1, dtype=np.int32)),
            ("const float* w_scale", np.ascontiguousarray(w_scale.data[:, 0])),
            ("const float* scale", range_)]
    return _product(low, node, f"int8_linear<{n}, {k}, {wide}>(out, q, w", first, args, parts)


def linear_weights(low, node):
    bits, k = node.attributes["bits"], node.inputs[1].shape[1]
    if bits == 4 and k % GROUP or (parts := _parts(low, node)) is None:
        return False
    x, w, w_scale, _ = node.inputs[:4]
    n, groups = w_scale.shape
    scale = np.zeros((-(-n // lower.PANEL) * lower.PANEL, groups), np.float32)
    scale[:n] = w_scale.data
    scale = np.ascontiguousarray(scale.reshape(-1, lower.PANEL, groups).swapaxes(1, 2))
    group = k if bits == 8 else GROUP
    args = [("const float* a", low.contiguous(x)), ("const signed char* w", by_bits(w.data, bits)),
            ("const float* scale", scale)]
    call = f"weights_linear<{bits}, {n}, {k}, {group}>(a, w, scale"
    return _product(low, node, call, "sum", args, parts)


LOWER = {"linear_int8": linear_int8, "linear_weights": linear_weights}
