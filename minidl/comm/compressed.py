"""All-reduce of compressed payloads: a quarter of the bytes, each number rounded twice.

    1  all-to-all     rank r encodes its block j for rank j. Rank r decodes what comes, adds it to
                      its own block in float32:          one rounding of each rank's numbers
    2  all-gather     rank r encodes its sum; everybody decodes the same payloads, so all ranks
                      hold the same bits:                one rounding of the sum

    error <= sum over ranks k but the block's own of e(x_k)  +  e(sum)      e: see codec.py

A ring that decodes, adds and encodes in every step rounds the growing partial sums n-1 times: with
int8 and values up to m its bound is about n^2/2 * m/254, here it is 2n * m/254. To gather all
encoded arrays and add them rounds once, but sends n/2 times the bytes.

Error feedback: what is lost is not gone. With `residual`, an array like x that the caller keeps
from call to call, every rank adds to its numbers what rounding took from them the last time:

    residual, rank r     | lost on the way to block 0 | lost by the sum of block r | block 2 ... |

Its own block a rank does not round for itself, so there is room for the error of that block's sum:
1-bit Adam's two residuals in one array. In every call, and so in the sum of all calls,

    result + sum over ranks of residual = sum over ranks of (x + residual before)

Sparse arrays are sent as (index, value) pairs: an all-gather of unequal lengths, then every rank
adds all pairs in rank order. With k = rho L pairs on each rank that sends 8 (n-1) k bytes, where
the dense ring sends 8 (n-1) L / n: 1 / (n rho) times as many. At rho = 0.001 the ring sends 62
times as many on 16 ranks, but on 1,000 ranks no more.

    DataParallel(model, t, all_reduce=functools.partial(compressed.all_reduce, codec=codec.FP16))

Sources: Tang et al. 2021 (1-bit Adam, arXiv 2102.02888; the two steps, error feedback in both),
Wang et al. 2023 (ZeRO++, arXiv 2306.10209; all-to-all against repeated rounding), Lin et al. 2018
(sparse).
Test: tests/comm/test_compressed.py
Time: n alpha + 2(n-1)/n C beta, C the bytes of all n encoded blocks; sparse, of k pairs on each
rank: (n-1) (2 alpha + 8 beta + 8 k beta)
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
    """The sum of all ranks' x, compressed on the way, on every rank.

    In place like `ring.all_reduce`. Added in float32, whatever x's floating point dtype. Sends all
    encoded blocks but its own, then all encoded sums but the right neighbour's, in 2(n-1) messages.
    One rank alone rounds nothing. Integers and booleans (counts and flags) are sent as they are.

    residual: error feedback, see above: an array like x, of zeros at first, overwritten. Then the
    sum is in x's dtype, which must be float32 or float64, and inf or nan is an error: the residual
    would never be a number again."""
    if x.dtype.kind in "iub":
        return ring_blocks.all_reduce(t, x)
    return (_reduce if residual is None else _with_feedback)(t, x, codec, 1, residual)


@collective
def mean(t: Transport, x: SameArray, codec: Codec = INT8,
         residual: Array | None = None) -> SameArray:
    """As `all_reduce`, divided by n in float32 before the sum is encoded: the sum of 8 ranks can
    pass float16's 65504 where their mean does not."""
    return (_reduce if residual is None else _with_feedback)(t, x, codec, t.size, residual)


def _with_feedback(t, x, codec, divisor, residual):
    check_residual(t, x, residual)
    x += residual
    if t.size == 1:  # nothing is rounded, so nothing is owed; else each block's error is written
        residual[...] = 0
    with np.errstate(over="ignore", invalid="ignore"):  # the sentence below instead of a warning
        result = _reduce(t, x, codec, divisor, residual.reshape(-1))
    if not all_finite(residual.reshape(-1)):
        raise FloatingPointError(
            f"rank {t.rank}: wanted finite numbers, to round them and to keep their errors; got "
            "inf or nan, or numbers beyond the codec's (fp16: 65504). Scale or clip them before")
    return result


def check_residual(t, x, residual):
    """Raise unless the residual is like x."""
    like = residual.shape == x.shape and residual.dtype == x.dtype
    if not like or x.dtype.itemsize < 4 or not residual.flags.c_contiguous:
        raise ValueError(
            f"rank {t.rank}: wanted a contiguous residual like x, both float32 or float64; got "
            f"{residual.dtype} of shape {residual.shape} for x {x.dtype} of shape {x.shape}. "
            "np.zeros_like(x) is the first one")


def _reduce(t, x, codec, divisor, residual):
    n, r = t.size, t.rank
    check_floating(t, x, "a codec, which rounds,")
    flat = chunks.flat(x)
    if n == 1:
        return flat.reshape(x.shape)
    block, xp = chunks.split(flat, n), xp_of([flat])
    owed = None if residual is None else chunks.split(residual, n)
    total = block[r].astype(np.float32 if residual is None else x.dtype)
    # While a block is on its way the next one is encoded, so all receives stand ready.
    incoming = [xp.empty(codec.n_bytes(len(total)), np.uint8) for _ in range(1, n)]
    arriving = [t.irecv(into, (r - s) % n) for s, into in enumerate(incoming, 1)]
    leaving = []
    for s in range(1, n):
        to = (r + s) % n
        outgoing = codec.encode(block[to])
        leaving.append((t.isend(outgoing, to), outgoing))  # kept until it has gone
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
    if residual is not None:  # in units of a sum, as the rest of it
        xp.subtract(total, codec.decode(encoded[r], len(total)), out=owed[r])
        owed[r] *= divisor
    for s in range(n):  # the ring's all-gather; a block is decoded while it goes on to the right
        i, requests = (r - s) % n, ()
        if s < n - 1:
            requests = t.irecv(encoded[i - 1], (r - 1) % n), t.isend(encoded[i], (r + 1) % n)
        block[i][...] = codec.decode(encoded[i], len(block[i]))
        for request in requests:
            request.wait()
    return flat.reshape(x.shape)


def bytes_sent(length: int, codec: Codec, n: int, rank: int) -> int:
    """Bytes that `rank` sends in `all_reduce` or `mean`: all encoded blocks but its own, then all
    encoded sums but its right neighbour's."""
    sizes = [codec.n_bytes(chunks.size(length, n, i)) for i in range(n)]
    return 2 * sum(sizes) - sizes[rank] - sizes[(rank + 1) % n] if n > 1 else 0


@collective(own_args=("indices", "values"))
def sparse_all_reduce(t: Transport, indices: Array, values: SameArray, length: int,
                      equal: bool = False) -> SameArray:
    """The sum of all ranks' sparse arrays, dense on every rank: float32, of `length` elements.

    indices, values: this rank's pairs, as many as it likes; an index that comes twice adds. Added
    in rank order: the same bits on all ranks. Of device arrays the pairs are added on the host (the
    atomic additions of a GPU have no order), and the sum goes to where the values are. Sends 8
    (n-1) bytes of lengths, then 8 bytes for each pair of all ranks but the right neighbour, in
    2(n-1) messages. equal: all ranks have as many pairs; then no lengths are sent."""
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
            np.add.at(total, where, what)  # += would count a repeated index once
    return result
