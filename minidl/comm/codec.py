"""An array in fewer bytes: encoded as a payload of uint8, and decoded.

                 payload of L elements               bytes                  error of an element x
    FP16         L float16                           2 L                    |x| / 2048, + 3e-8
    INT8         a float32 scale for every 1,024     L + 4 ceil(L / 1024)   max |block| / 254,
                 elements, then L int8                                      + 1.5e-36
    ONE_BIT      a float32 scale, then L signs       4 + ceil(L / 8)        || x ||: see below
    pairs        k int32 indices, k float32 values   8 k                    0, but k of L elements

A codec is two plain functions, encode(x) -> payload and decode(payload, length) -> float32, and the
payload's exact size, n_bytes(length): a receiver needs it before the payload comes. Arrays of
float64 are rounded to float32 first.

A sign alone is no rounding: its error is about as large as the array, and only error feedback
(compressed.py's `residual`) makes use of it. The scale of ONE_BIT is || x || / sqrt(L), 1-bit
Adam's, so that the array keeps its norm; ONE_BIT_MEAN's is the mean of |x|, whose error is never
larger than || x ||.

Overflow stays visible: numbers beyond 65504 become inf in float16 (NumPy warns), and an int8 block
with inf or nan decodes to nan.

Sources: Micikevicius et al. 2018 (float16); Dettmers 2016 (arXiv 1511.04561; 8 bits for gradients);
Lin et al. 2018 (index and value); Tang et al. 2021 (arXiv 2102.02888; one bit), Karimireddy et al.
2019 (arXiv 1901.09847; the mean of |x|).
Test: tests/comm/test_codec.py   Used by: compressed.py
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minidl.backend import xp_of

# Elements that share a scale: 0.4 % more bytes, and a large value costs only its neighbours.
BLOCK = 1024


class Codec(NamedTuple):
    """encode(1-d floating point array) -> flat uint8 array of n_bytes(length) bytes;
    decode(payload, length) -> float32 array."""

    encode: Callable
    decode: Callable
    n_bytes: Callable


def encode_fp16(x):
    """x rounded to float16: 11 significant bits, a relative error of at most 2**-11."""
    return x.astype(np.float16).view(np.uint8)


def decode_fp16(payload, length):
    return payload.view(np.float16)[:length].astype(np.float32)


def encode_int8(x):
    """x / scale rounded to the integers -127..127, scale = max |x| / 127 of each block."""
    xp = xp_of([x])
    if not len(x):  # a maximum of no elements is an error of CuPy's
        return xp.empty(0, np.uint8)
    blocks = xp.zeros((_n_blocks(len(x)), BLOCK), np.float32)
    blocks.reshape(-1)[: len(x)] = x
    scale = xp.maximum(blocks.max(axis=1), -blocks.min(axis=1)) / np.float32(127)
    scale[scale < np.finfo(np.float32).tiny] = 0  # subnormal, of too few bits to divide by
    lost = ~xp.isfinite(scale)
    blocks[lost], scale[lost] = 0, np.nan
    divisor = xp.where(scale > 0, scale, np.float32(np.inf))
    blocks /= divisor[:, None]  # a block of scale 0 becomes zeros
    q = xp.rint(blocks, out=blocks).astype(np.int8).reshape(-1)[: len(x)]
    return xp.concatenate([scale.view(np.uint8), q.view(np.uint8)])


def decode_int8(payload, length):
    n_scales = _n_blocks(length)
    # a copy: it may begin at any byte, and a GPU reads 4 bytes at multiples of 4 only
    scale = payload[: 4 * n_scales].copy().view(np.float32)
    blocks = xp_of([payload]).zeros((n_scales, BLOCK), np.float32)
    blocks.reshape(-1)[:length] = payload[4 * n_scales :].view(np.int8)
    blocks *= scale[:, None]
    return blocks.reshape(-1)[:length]


def _n_blocks(length):
    return -(-length // BLOCK)


def one_bit(scale_of):
    """The codec that keeps the sign of each element (of 0: +) and one scale, a function of x."""

    def encode(x):
        xp = xp_of([x])
        if not len(x):
            return xp.empty(0, np.uint8)
        scale = scale_of(xp, x).astype(np.float32).reshape(1)
        return xp.concatenate([scale.view(np.uint8), xp.packbits(x >= 0)])

    def decode(payload, length):
        xp = xp_of([payload])
        if not length:
            return xp.empty(0, np.float32)
        scale = payload[:4].copy().view(np.float32)
        signs = xp.unpackbits(payload[4:])[:length].astype(np.float32)
        signs *= 2 * scale  # 0 or 2 scales, then less one: exact
        return signs - scale

    return Codec(encode, decode, lambda length: length and 4 + -(-length // 8))


ONE_BIT = one_bit(lambda xp, x: xp.sqrt(xp.mean(xp.square(x, dtype=np.float64))))
ONE_BIT_MEAN = one_bit(lambda xp, x: xp.mean(xp.abs(x), dtype=np.float64))
FP16 = Codec(encode_fp16, decode_fp16, lambda length: 2 * length)
INT8 = Codec(encode_int8, decode_int8, lambda length: length + 4 * _n_blocks(length))


def encode_pairs(indices, values):
    """The elements of a long array that count: where they are, and their values in float32.

    indices: k ints in any order, 0 to 2**31 - 1; one that occurs twice adds up in the end.
    values: k numbers."""
    indices, values = np.asarray(indices), np.asarray(values)
    if indices.shape != values.shape or indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(
            "(index, value) pairs need two 1-d arrays of one length, integers first; got "
            f"{indices.dtype} of shape {indices.shape} and {values.dtype} of shape {values.shape}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < 2**31:
        raise ValueError("(index, value) pairs carry indices of 31 bits, 0 to 2147483647; got "
                         f"{indices.min()} to {indices.max()}. Cut the array into shorter ones.")
    values = values.astype(np.float32)
    return np.concatenate([indices.astype(np.int32).view(np.uint8), values.view(np.uint8)])


def decode_pairs(payload):
    """(indices int32, values float32), as views of the payload."""
    half = len(payload) // 2
    return payload[:half].view(np.int32), payload[half:].view(np.float32)
