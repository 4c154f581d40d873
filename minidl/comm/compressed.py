"""All-reduce of compressed payloads. With INT8 it sends a quarter of the bytes of float32.

    1  all-to-all     rank r encodes its block j and sends it to rank j. Rank r decodes the payloads
                      that it receives and adds them to its own block in float32. This rounds each
                      rank's numbers once.
    2  all-gather     rank r encodes its sum. All ranks decode the same payloads, so they hold the
                      same bits. This rounds the sum once.

Let e be the error of the codec (codec.py), x_k the block r of rank k's x, and total the sum of
these blocks. Then:

    error of block r  <=  (sum over all ranks k != r of e(x_k))  +  e(total)

Two other ways are possible. The first way is a ring that decodes, adds and encodes in every step.
Such a ring rounds the growing partial sums n-1 times. With int8 and values up to m, the error of
the ring is at most about n^2/2 * m/254. The error here is at most 2n * m/254. The second way
gathers all encoded arrays and adds them on every rank. This way rounds each number only once, but
sends n/2 times as many bytes.

Error feedback: `residual` is an array like x that the caller keeps from call to call. It holds the
rounding errors of the last call. Every rank adds its residual to x before it rounds again:

    residual, rank r     | error of block 0 | error of the sum of block r | error of block 2 | ...

A rank does not round its own block before the sum. So the residual of this block can hold another
error: the error of the block's sum. 1-bit Adam has two residuals. Here one array is enough. In
every call this equation is true, and so no error is lost over many calls:

    result + sum over ranks of residual = sum over ranks of (x + residual before the call)

Sparse arrays are sent as (index, value) pairs, by an all-gather of blocks of any length. Then every
rank adds all pairs in rank order. Let L be the number of all elements, zeros included, and let each
rank have k pairs. The share of these k elements is rho = k / L. Then a rank sends 8 (n-1) k bytes.
In a ring that sends all elements, a rank sends 8 (n-1) L / n bytes. So the ring sends 1 / (n rho)
times as many bytes as the pairs. Example: rho = 0.001. On 16 ranks the ring sends 62 times as many
bytes as the pairs. On 1,000 ranks the ring and the pairs send the same number of bytes.

    DataParallel(model, t, all_reduce=functools.partial(compressed.all_reduce, codec=codec.FP16))

Sources: Tang et al. 2021 (1-bit Adam, arXiv 2102.02888; the two steps, error feedback in both),
Wang et al. 2023 (ZeRO++, arXiv 2306.10209; all-to-all against repeated rounding), Lin et al. 2018
(sparse).
Test: tests/comm/test_compressed.py
Time: n alpha + 2(n-1)/n C beta, where C is the bytes of all n encoded blocks. Sparse, with k pairs
on each rank: (n-1) (2 alpha + 8 beta + 8 k beta)
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from minidl.backend import xp_of
from minidl.comm import chunks, ring_blocks
from minidl.comm.checks import all_finite, check_floating
from minidl.comm.codec import INT8, decode_pairs, encode_pairs
from minidl.comm.collective import collective
from minidl.comm.transport import staging

if TYPE_CHECKING:
    from minidl.comm.codec import Codec
    from minidl.comm.transport.protocol import Transport
    from minidl.hints import Array, SameArray


@collective
def all_reduce(t: Transport, x: SameArray, codec: Codec = INT8,
               residual: Array | None = None) -> SameArray:
    """Sums all ranks' x, with compressed messages. Returns the sum on every rank. Works in place if
    x is contiguous, as `ring.all_reduce` does.

    The additions are in float32 for every floating point dtype of x. A rank sends all encoded
    blocks except its own, then all encoded sums except the right neighbour's, in 2(n-1) messages.
    If there is only one rank, nothing is rounded. Integers and booleans (counts and flags) are sent
    without compression.

    residual: a contiguous array like x, for error feedback (see the top of this file). Pass zeros
    in the first call. Each call overwrites the residual. With a residual, x must be float32 or
    float64, and the additions are in the dtype of x. Then the function raises FloatingPointError
    for inf or nan, because these values would stay in the residual for ever."""
    if x.dtype.kind in "iub":
        return ring_blocks.all_reduce(t, x)
    return (_reduce if residual is None else _with_feedback)(t, x, codec, 1, residual)


@collective
def mean(t: Transport, x: SameArray, codec: Codec = INT8,
         residual: Array | None = None) -> SameArray:
    """Like `all_reduce`, but divides the sum by n, the number of ranks, before the sum is encoded.
    So the sum may be larger than 65504, the largest float16 number. Only the mean must be smaller.
    """
    return (_reduce if residual is None else _with_feedback)(t, x, codec, t.size, residual)


def _with_feedback(t, x, codec, divisor, residual):
    check_residual(t, x, residual)
    x += residual
    if t.size == 1:  # one rank rounds nothing. With more ranks, _reduce fills `residual`.
        residual[...] = 0
    with np.errstate(over="ignore", invalid="ignore"):  # no warning: an error is raised below
        result = _reduce(t, x, codec, divisor, residual.reshape(-1))
    if not all_finite(residual.reshape(-1)):
        raise FloatingPointError(
            f"rank {t.rank}: wanted finite numbers in the range of the codec (fp16: up to 65504). "
            "The rounding error of any other number is inf or nan, and would stay in the residual. "
            "Got inf, nan or a number out of this range. Scale or clip the numbers first")
    return result


def check_residual(t, x, residual):
    """Raises ValueError unless x is float32 or float64, and the residual is contiguous and has the
    shape and dtype of x."""
    like = residual.shape == x.shape and residual.dtype == x.dtype
    if not like or x.dtype.itemsize < 4 or not residual.flags.c_contiguous:
        raise ValueError(
            f"rank {t.rank}: wanted x in float32 or float64, and a contiguous residual of the "
            f"same shape and dtype; got residual {residual.dtype} of shape {residual.shape}, x "
            f"{x.dtype} of shape {x.shape}. For the first call pass np.zeros_like(x)")


def _reduce(t, x, codec, divisor, residual):
    n, r = t.size, t.rank
    check_floating(t, x, "a codec, which rounds,")
    flat = chunks.flat(x)
    if n == 1:
        return flat.reshape(x.shape)
    block, xp = chunks.split(flat, n), xp_of([flat])
    owed = None if residual is None else chunks.split(residual, n)
    total = block[r].astype(np.float32 if residual is None else x.dtype)
    # All receives are started first. Then this rank encodes one block while another block is sent.
    incoming = [xp.empty(codec.n_bytes(len(total)), np.uint8) for _ in range(1, n)]
    arriving = [t.irecv(into, (r - s) % n) for s, into in enumerate(incoming, 1)]
    leaving = []
    for s in range(1, n):
        to = (r + s) % n
        outgoing = codec.encode(block[to])
        leaving.append((t.isend(outgoing, to), outgoing))  # keep the payload until it is sent
        if residual is not None:
            xp.subtract(block[to], codec.decode(outgoing, len(block[to])), out=owed[to])
    for request, payload in zip(arriving, incoming):
        request.wait()
        total += codec.decode(payload, len(total))
    for request, _ in leaving:
        request.wait()
    total /= divisor

    bounds = [0, *np.cumsum([codec.n_bytes(len(b)) for b in block]).tolist()]
    payload = xp.empty(bounds[-1], np.uint8)
    encoded = [payload[begin:end] for begin, end in pairwise(bounds)]
    encoded[r][...] = codec.encode(total)
    if residual is not None:  # the residual is the error of the sum, not of the mean
        xp.subtract(total, codec.decode(encoded[r], len(total)), out=owed[r])
        owed[r] *= divisor
    for s in range(n):  # a ring all-gather: decode a block while it is sent to the right neighbour
        i, requests = (r - s) % n, ()
        if s < n - 1:
            requests = t.irecv(encoded[i - 1], (r - 1) % n), t.isend(encoded[i], (r + 1) % n)
        block[i][...] = codec.decode(encoded[i], len(block[i]))
        for request in requests:
            request.wait()
    return flat.reshape(x.shape)


def bytes_sent(length: int, codec: Codec, n: int, rank: int) -> int:
    """Returns the number of bytes that `rank` sends in `all_reduce` or `mean`. The rank sends all
    encoded blocks except its own, then all encoded sums except its right neighbour's.

    length: the number of elements of x. n: the number of ranks."""
    sizes = [codec.n_bytes(chunks.size(length, n, i)) for i in range(n)]
    return 2 * sum(sizes) - sizes[rank] - sizes[(rank + 1) % n] if n > 1 else 0


@collective(own_args=("indices", "values"))
def sparse_all_reduce(t: Transport, indices: Array, values: SameArray, length: int,
                      equal: bool = False) -> SameArray:
    """Sums all ranks' sparse arrays. Returns the sum on every rank, as a dense 1-d float32 array of
    `length` elements.

    indices, values: the (index, value) pairs of this rank's array, as two 1-d arrays of the same
    length. If an index occurs twice, its values are added. The additions are in rank order, so all
    ranks get the same bits. Device arrays are added on the host, because a GPU's atomic additions
    have no fixed order. Then the sum is copied to the device of `values`.

    A rank sends 8 (n-1) bytes for the lengths. Then it sends the pairs of all ranks except its
    right neighbour, 8 bytes for each pair. Together these are 2(n-1) messages.

    equal: True if all ranks have the same number of pairs. Then no lengths are sent."""
    like, (indices, values) = values, (
        staging.download(x) if staging.on_device(x) else x for x in (indices, values))
    try:
        payload = encode_pairs(indices, values)
    except ValueError as error:
        raise ValueError(f"rank {t.rank}: {error}") from None
    if len(indices) and np.max(indices) >= length:
        raise ValueError(
            f"rank {t.rank}: wanted indices below the length {length}; got {np.max(indices)}")
    if equal:
        bounds = [i * len(payload) for i in range(t.size + 1)]
        gathered = np.empty(bounds[-1], np.uint8)
        gathered[bounds[t.rank] : bounds[t.rank + 1]] = payload
        ring_blocks.all_gather(t, gathered, bounds)
    else:
        gathered, bounds = ring_blocks.all_gather_v(t, payload)
    with staging.new_on(t, like, length, np.float32) as (total, result):
        total[...] = 0
        for i in range(t.size):
            where, what = decode_pairs(gathered[bounds[i] : bounds[i + 1]])
            np.add.at(total, where, what)  # += would add only one of the values with the same index
    return result
