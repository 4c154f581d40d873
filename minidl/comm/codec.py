"""Codecs. A codec encodes an array in fewer bytes, as a payload of uint8, and decodes the payload.

                 payload of L elements               bytes                  error of an element x
    FP16         L float16                           2 L                    |x| / 2048 + 3e-8
    INT8         a float32 scale for every 1,024     L + 4 ceil(L / 1024)   max |block| / 254
                 elements, then L int8                                      + 1.5e-36
    ONE_BIT      a float32 scale, then L signs       4 + ceil(L / 8)        || x ||: see below
    pairs        k int32 indices, k float32 values   8 k                    0 for the k elements

A codec has three functions: encode(x) -> payload, decode(payload, length) -> float32 array, and
n_bytes(length), the exact size of the payload. A receiver needs the size before the payload comes.
INT8 rounds a float64 array to float32 first.

One bit is a very rough format: the error is about as large as the array. Use it only with error
feedback (`residual` in compressed.py). The scale of ONE_BIT is || x || / sqrt(L), as in 1-bit Adam.
With this scale the decoded array has the same norm as x. The scale of ONE_BIT_MEAN is the mean of
|x|. With this scale the error is never larger than || x ||.

An overflow can be seen in the result. In FP16, numbers beyond 65504 become inf (NumPy warns). In
INT8, a block that contains inf or nan decodes to nan.

Sources: Micikevicius et al. 2018 (float16); Dettmers 2016 (arXiv 1511.04561; 8 bits for gradients);
Lin et al. 2018 (index and value); Tang et al. 2021 (arXiv 2102.02888; one bit), Karimireddy et al.
2019 (arXiv 1901.09847; the mean of |x|).
Test: tests/comm/test_codec.py   Used by: compressed.py
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from minidl.backend import xp_of

# The number of elements that share a scale. The scales add 0.4 % to the bytes. A large element
# makes the rounding coarser only in its own block.
BLOCK = 1024


class Codec(NamedTuple):
    """encode(1-d floating point array) -> flat uint8 array of n_bytes(length) bytes.
    decode(payload, length) -> 1-d float32 array of `length` elements.
    n_bytes(length) -> int."""

    encode: Callable
    decode: Callable
    n_bytes: Callable


def encode_fp16(x):
    """Encodes x in float16. Returns the payload, a uint8 array with the bytes of the float16 array.
    float16 has 11 significant bits, so the relative error is at most 2**-11."""
    return x.astype(np.float16).view(np.uint8)


def decode_fp16(payload, length):
    """Returns the float32 array of `length` elements in a payload of encode_fp16."""
    return payload.view(np.float16)[:length].astype(np.float32)


def encode_int8(x):
    """Encodes x in int8. Returns the payload, a uint8 array. It has a float32 scale for each block,
    then x / scale in int8. The scale of a block is the block's max |x| / 127. So x / scale is a
    number from -127 to 127, and it is rounded to an integer."""
    xp = xp_of([x])
    if not len(x):  # CuPy raises an error for the maximum of an empty array
        return xp.empty(0, np.uint8)
    blocks = xp.zeros((_n_blocks(len(x)), BLOCK), np.float32)
    blocks.reshape(-1)[: len(x)] = x
    scale = xp.maximum(blocks.max(axis=1), -blocks.min(axis=1)) / np.float32(127)
    scale[scale < np.finfo(np.float32).tiny] = 0  # a subnormal scale has too few bits to divide by
    lost = ~xp.isfinite(scale)
    blocks[lost], scale[lost] = 0, np.nan
    divisor = xp.where(scale > 0, scale, np.float32(np.inf))
    blocks /= divisor[:, None]  # a block of scale 0 becomes zeros
    q = xp.rint(blocks, out=blocks).astype(np.int8).reshape(-1)[: len(x)]
    return xp.concatenate([scale.view(np.uint8), q.view(np.uint8)])


def decode_int8(payload, length):
    """Returns the float32 array of `length` elements in a payload of encode_int8."""
    n_scales = _n_blocks(length)
    # A copy is needed: the payload may begin at any address, but a GPU reads a float32 only from
    # an address that is a multiple of 4.
    scale = payload[: 4 * n_scales].copy().view(np.float32)
    blocks = xp_of([payload]).zeros((n_scales, BLOCK), np.float32)
    blocks.reshape(-1)[:length] = payload[4 * n_scales :].view(np.int8)
    blocks *= scale[:, None]
    return blocks.reshape(-1)[:length]


def _n_blocks(length):
    return -(-length // BLOCK)


def one_bit(scale_of):
    """Returns the codec that keeps one scale and the sign of each element. 0 counts as positive.

    scale_of(xp, x): a function that returns the scale of the array x, a number. xp is the array
    library of x, NumPy or CuPy."""

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
        signs *= 2 * scale  # each sign is now 0 or 2 scale; the next line subtracts scale
        return signs - scale

    return Codec(encode, decode, lambda length: length and 4 + -(-length // 8))


ONE_BIT = one_bit(lambda xp, x: xp.sqrt(xp.mean(xp.square(x, dtype=np.float64))))
ONE_BIT_MEAN = one_bit(lambda xp, x: xp.mean(xp.abs(x), dtype=np.float64))
FP16 = Codec(encode_fp16, decode_fp16, lambda length: 2 * length)
INT8 = Codec(encode_int8, decode_int8, lambda length: length + 4 * _n_blocks(length))


def encode_pairs(indices, values):
    """Encodes k elements of a long array. Returns the payload, a 1-d uint8 array. It has the k
    indices as int32, then the k values as float32. Raises ValueError for wrong shapes, dtypes or
    indices.

    indices: k ints from 0 to 2**31 - 1, in any order. If an index occurs twice, the receiver adds
    the two values. values: k numbers."""
    indices, values = np.asarray(indices), np.asarray(values)
    if indices.shape != values.shape or indices.ndim != 1 or indices.dtype.kind not in "iu":
        raise ValueError(
            "(index, value) pairs want two 1-d arrays of the same length, and integer indices; got "
            f"indices {indices.dtype} of shape {indices.shape}, values {values.dtype} of shape "
            f"{values.shape}")
    if len(indices) and not 0 <= indices.min() <= indices.max() < 2**31:
        raise ValueError("(index, value) pairs want indices from 0 to 2147483647 (31 bits); got "
                         f"indices from {indices.min()} to {indices.max()}. Cut the array into "
                         "shorter arrays.")
    values = values.astype(np.float32)
    return np.concatenate([indices.astype(np.int32).view(np.uint8), values.view(np.uint8)])


def decode_pairs(payload):
    """Returns (the indices as int32, the values as float32). Both arrays are views of the payload.
    """
    half = len(payload) // 2
    return payload[:half].view(np.int32), payload[half:].view(np.float32)
