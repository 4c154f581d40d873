"""Kernels for the codecs FP16 and INT8. They make the same bytes as comm/codec.py, in less time.

    codec   kernel          payload of L elements
    FP16    pack.cu         L float16: 2 L bytes
    INT8    quantize.cu     a float32 scale for each row of 1,024 elements, then L int8

The codecs in comm/codec.py use only NumPy. NumPy casts to float16 and back one element at a time,
which is slow. If kernels may run, parallel/data/compress.py uses the functions of this file in
place of the codecs' functions.

Kernels: kernels/pack.cu, kernels/quantize.cu   Test: tests/parallel/data/test_codecs.py
"""

import numpy as np

from minidl import backend
from minidl.ops.extra import quantize
from minidl.parallel.data import flat

ROW = 1024  # the number of elements that share one scale


def encode_fp16(x):
    """Returns the payload of x: the elements rounded to float16, as 2 L bytes (uint8). x: (L,)
    float32."""
    half = backend.xp_of([x]).empty(x.size, np.float16)
    flat.pack([x], half)
    return half.view(np.uint8)


def decode_fp16(payload, length):
    """Returns the (length,) float32 array that encode_fp16 encoded as `payload`."""
    x = backend.xp_of([payload]).empty(length, np.float32)
    if length:
        flat.unpack(payload.view(np.float16), [x])
    return x


def encode_int8(x):
    """Returns the payload of x as bytes (uint8). x: (L,) float32. The payload begins with a float32
    scale for each row of 1,024 elements. Then comes x / scale, rounded to int8, from -127 to 127. A
    row with inf or nan has the scale nan."""
    xp, n_rows = backend.xp_of([x]), -(-x.size // ROW)
    payload = xp.empty(4 * n_rows + x.size, np.uint8)
    scale, q = xp.zeros(n_rows, np.float32), xp.empty(x.size, np.int8)
    for rows, cols, r, e in _parts(x.size):
        quantize.launch(xp, "absmax", x[e], (scale[r], x[e], rows, cols))
    scale /= np.float32(127)
    scale[scale < np.finfo(np.float32).tiny] = 0  # a subnormal scale has too few bits for x / scale
    scale[~xp.isfinite(scale)] = np.nan
    for rows, cols, r, e in _parts(x.size):
        quantize.launch(xp, "quantize", x[e], (q[e], x[e], scale[r], rows, cols, 1))
    payload[: 4 * n_rows], payload[4 * n_rows:] = scale.view(np.uint8), q.view(np.uint8)
    return payload


def decode_int8(payload, length):
    """Returns the (length,) float32 array that encode_int8 encoded as `payload`."""
    xp, n_rows = backend.xp_of([payload]), -(-length // ROW)
    # copied, because a payload may begin at any byte, and a kernel needs 4-byte alignment
    scale, q = payload[: 4 * n_rows].copy().view(np.float32), payload[4 * n_rows:].view(np.int8)
    x = xp.empty(length, np.float32)
    for rows, cols, r, e in _parts(length):
        quantize.launch(xp, "dequantize", x[e], (x[e], q[e], scale[r], rows, cols, 1))
    return x


def _parts(length):
    """Divides `length` elements into rows of 1,024 elements. Returns a list of at most two entries:
    one for all full rows, and one for a shorter last row. An entry is (number of rows, number of
    columns, scales, elements). scales and elements are slices, which select the scales and the
    elements of these rows."""
    n, rest = divmod(length, ROW)
    parts = []
    if n:
        parts.append((n, ROW, slice(0, n), slice(0, n * ROW)))
    if rest:
        parts.append((1, rest, slice(n, n + 1), slice(n * ROW, length)))
    return parts
