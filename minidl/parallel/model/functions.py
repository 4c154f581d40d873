"""Collectives inside of the graph: conjugate pairs, each the other's backward.

The plain form of the first two: minidl/plain/tensor_parallel.py; of the last one:
minidl/plain/ulysses.py. Here: Functions of the engine, any dtype, and blocks of unequal length.

    copy             forward nothing          backward all-reduce         f of Megatron
    all_reduce       forward all-reduce       backward nothing            g
    scatter          forward a slice          backward gather
    gather           forward gather           backward a slice
    all_gather       forward gather           backward reduce-scatter
    reduce_scatter   forward reduce-scatter   backward all-gather
    all_to_all       forward all-to-all       backward all-to-all, the dimensions exchanged

Which one is right depends on what the ranks hold on both sides of it:

                              a replicated result          each rank's own result
    a replicated input        (nothing to do)              copy, scatter
    each rank's own input     all_reduce, gather           all_gather, reduce_scatter, all_to_all

Replicated: all ranks hold the same numbers and go on to compute the same. Then the loss counts
once, and so does each rank's gradient of such a tensor, which is the same everywhere: `all_reduce`
and `gather` need not send anything back. Where ranks go on with a gathered tensor to results of
their own, each has a part of its gradient only, and they must be summed: that is `all_gather`. With
`gather` in its place the loss falls all the same, and the gradient is wrong.

All ranks of t call them in the same order, with the same shapes and `requires_grad`; then the
backwards come in the same order, too. Blocks along a dimension are those of `chunks.bounds`: the
first ones are one longer where n does not divide. Sums of float16 and bfloat16 are in float32, with
2 bytes an element on the wire. A message's label is its function's, "copy.backward". Bytes: what
each rank sends, n ranks, K bytes of the whole array.

Sources: Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Korthikanti et al. 2022 (arXiv
2205.05198), section 4.2; Jacobs et al. 2023 (arXiv 2309.14509) for all_to_all.
Test: tests/parallel/model/test_functions.py   Tutorial: tutorials/13_tensor_parallel.py
"""

import itertools
import math

from minidl import backend
from minidl.comm import all_to_all as exchange
from minidl.comm import chunks
from minidl.comm.collective import collective
from minidl.comm.labels import named
from minidl.comm.transport import device
from minidl.function import Function


class Pair(Function):
    """there(x), and in backward back(gradient): two functions of an array. Saves nothing."""

    arithmetic = False  # bfloat16 is summed by `total`

    def forward(self, x, name, there, back):
        self.name, self.back = name, back
        with named(f"{name}.forward"):
            return there(x)

    def backward(self, gy):
        with named(f"{self.name}.backward"):
            return self.back(gy)


def copy(t, x, all_reduce=None):
    """x itself; backward: the gradients' sum over t, by an all-reduce, 2(n-1)/n K.

    Before what each rank does for itself with the same x, as columns of a matrix. all_reduce: any
    f(t, array) in place; `total` unless given."""
    run = all_reduce or total
    return Pair.apply(x, name="copy", there=lambda x: x, back=lambda g: run(t, g.copy()))


def all_reduce(t, x, all_reduce=None):
    """The sum of all ranks' x, 2(n-1)/n K; backward: the gradient as it comes, and no message.

    After partial sums, as rows of a matrix give them."""
    run = all_reduce or total
    return Pair.apply(x, name="all_reduce", there=lambda x: run(t, x.copy()), back=lambda g: g)


def scatter(t, x, dim):
    """This rank's block of the replicated x along dim, no message; backward: an all-gather of the
    blocks' gradients, (n-1)/n K."""
    length = x.shape[dim]  # a `back` that names x would keep it
    return Pair.apply(x, name="scatter", there=lambda x: own_block(t, x, dim),
                      back=lambda g: join(t, g, dim, length))


def gather(t, x, dim, length=None):
    """All ranks' x joined along dim, for all to go on with alike, (n-1)/n K; backward: this rank's
    slice, no message. length: of the whole along dim, where it may be uneven; n times x's."""
    return Pair.apply(x, name="gather", there=lambda x: join(t, x, dim, length),
                      back=lambda g: own_block(t, g, dim))


def all_gather(t, x, dim, length=None):
    """All ranks' x joined along dim, for each to go on by itself, (n-1)/n K; backward: a
    reduce-scatter of the gradients, (n-1)/n K. length: as for `gather`."""
    return Pair.apply(x, name="all_gather", there=lambda x: join(t, x, dim, length),
                      back=lambda g: sum_block(t, g, dim))


def reduce_scatter(t, x, dim):
    """This rank's block, along dim, of the sum of all ranks' x, (n-1)/n K; backward: an all-gather,
    (n-1)/n K."""
    length = x.shape[dim]
    return Pair.apply(x, name="reduce_scatter", there=lambda x: sum_block(t, x, dim),
                      back=lambda g: join(t, g, dim, length))


def all_to_all(t, x, split, join, length=None):
    """x cut along dimension `split` into a block for each rank; what came, joined along `join`,
    (n-1)/n of x; backward: the same with split and join exchanged, as many bytes.

    n must divide x's length along split, unless `length`, of the whole along join, is given: it may
    be uneven, and so may the other. Ulysses: (B, T/n, H, D), split the heads and join the tokens,
    to (B, T, H/n, D)."""
    back = None if length is None else x.shape[split]
    return Pair.apply(x, name="all_to_all", there=lambda x: transposed(t, x, split, join, length),
                      back=lambda g: transposed(t, g, join, split, back))


# -- of arrays


@collective
def total(t, x):
    """The sum of all ranks' x, on every rank, in place where x is contiguous; 2(n-1)/n K."""
    if backend.accumulate_dtype(x.dtype) == x.dtype:
        return device.all_reduce(t, chunks.contiguous(x))
    flat = chunks.flat(x)
    bounds = chunks.bounds(len(flat), t.size)
    device.mean_block(t, flat, bounds, divisor=1)
    return device.all_gather(t, flat, bounds).reshape(x.shape)


def own_block(t, x, dim):
    """This rank's block of x along dim, in memory of its own."""
    first, end = chunks.bounds(x.shape[dim], t.size)[t.rank : t.rank + 2]
    return x[(slice(None),) * (dim % x.ndim) + (slice(first, end),)].copy()


def join(t, x, dim, length=None):
    """All ranks' x, blocks along dim of an array of this length."""
    length = t.size * x.shape[dim] if length is None else length
    bounds = chunks.bounds(length, t.size)
    first, end = bounds[t.rank : t.rank + 2]
    if x.shape[dim] != end - first:
        raise ValueError(f"rank {t.rank}: wanted block {t.rank} of {length} along dimension {dim}, "
                         f"{end - first} long; got shape {tuple(x.shape)}")
    xp = backend.xp_of([x])
    rows = xp.moveaxis(x, dim, 0)
    whole = xp.empty((length, *rows.shape[1:]), x.dtype)
    whole[first:end] = rows
    device.all_gather(t, whole.reshape(-1), _scaled(bounds, whole))
    return xp.ascontiguousarray(xp.moveaxis(whole, 0, dim))


def sum_block(t, x, dim):
    """This rank's block along dim of the sum of all ranks' x."""
    xp = backend.xp_of([x])
    rows = xp.moveaxis(x, dim, 0).copy(order="C")  # the reduce-scatter's workspace
    bounds = chunks.bounds(len(rows), t.size)
    own = device.mean_block(t, rows.reshape(-1), _scaled(bounds, rows), divisor=1)
    first, end = bounds[t.rank : t.rank + 2]
    own = own.reshape(end - first, *rows.shape[1:])
    return xp.moveaxis(own, 0, dim).copy(order="C")  # a view would keep the workspace


def transposed(t, x, split, join, length=None):
    """The blocks of x along `split`, one for each rank; what came, along `join`."""
    xp, n, uneven = backend.xp_of([x]), t.size, x.shape[split] % t.size
    if length is not None and (uneven or length % n):
        cuts, joins = chunks.bounds(x.shape[split], n), chunks.bounds(length, n)
        blocks = [block.reshape(-1) for block in xp.split(x, cuts[1:-1], split)]
        shapes = [list(x.shape) for _ in range(n)]
        for shape, first, end in zip(shapes, joins, joins[1:]):
            shape[split], shape[join] = cuts[t.rank + 1] - cuts[t.rank], end - first
        came, counts = exchange.all_to_all_v(t, xp.concatenate(blocks), list(map(len, blocks)),
                                             list(map(math.prod, shapes)))
        places = list(itertools.accumulate(counts))[:-1]
        return xp.concatenate([block.reshape(shape) for block, shape in
                               zip(xp.split(came, places), shapes)], join)
    if uneven:
        raise ValueError(f"rank {t.rank}: wanted dimension {split} to be divided by {n} ranks; got "
                         f"shape {tuple(x.shape)}. Choose a number of ranks that divides "
                         f"{x.shape[split]}")
    return xp.concatenate(list(exchange.all_to_all(t, xp.stack(xp.split(x, n, split)))), join)


def _scaled(bounds, rows):
    """Bounds of rows as bounds of elements."""
    n_elems = 1
    for d in rows.shape[1:]:
        n_elems *= d
    return [place * n_elems for place in bounds]
