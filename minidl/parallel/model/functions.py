"""Collectives inside the graph: the backward of a collective is another collective.

The plain form of the first two functions: minidl/plain/tensor_parallel.py. The plain form of the
last one: minidl/plain/ulysses.py. Here they are Functions of autograd. Arrays may have any dtype,
and blocks may have unequal lengths.

    function         in forward               in backward
    copy             sends nothing            all-reduce                  f in Megatron's paper
    all_reduce       all-reduce               sends nothing               g in Megatron's paper
    scatter          takes a slice            gather
    gather           gather                   takes a slice
    all_gather       gather                   reduce-scatter
    reduce_scatter   reduce-scatter           all-gather
    all_to_all       all-to-all               all-to-all with the two dimensions exchanged

Which function is right depends on what the ranks hold before and after the function:

                              a replicated result          each rank's own result
    a replicated input        (nothing to do)              copy, scatter
    each rank's own input     all_reduce, gather           all_gather, reduce_scatter, all_to_all

A tensor is replicated if all ranks hold the same numbers and compute the same results from them.
Then every rank computes the same, complete gradient of the tensor. So `all_reduce` and `gather`
send nothing in backward. Suppose that each rank computes its own result from a gathered tensor.
Then each rank has only a part of the gradient, and the parts must be summed: use `all_gather`. With
`gather` instead, the gradient is wrong, although the loss falls.

All ranks of the transport t must call these functions in the same order, with the same shapes and
`requires_grad`. Then backward has the same order on all ranks, too. Along a dimension the blocks
are given by `chunks.bounds`: if n does not divide the length, the first blocks are one element
longer. float16 and bfloat16 are summed in float32, and sent with 2 bytes for each element. A
message's label contains the function's name, for example "copy.backward". The docstrings below
give the bytes that each of n ranks sends; K is the number of bytes of the whole array.

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
    """Computes there(x) in forward, and back(gradient) in backward. `there` and `back` are
    functions of an array. Saves nothing."""

    arithmetic = False  # False: bfloat16 arrays are not cast; total() rounds the sums

    def forward(self, x, name, there, back):
        self.name, self.back = name, back
        with named(f"{name}.forward"):
            return there(x)

    def backward(self, gy):
        with named(f"{self.name}.backward"):
            return self.back(gy)


def copy(t, x, all_reduce=None):
    """Returns x. Backward sums the gradients over t by an all-reduce (2(n-1)/n K bytes).

    Use copy if each rank then computes its own result from the same x, for instance some columns of
    a product. all_reduce: any f(t, array) that sums in place; by default `total`."""
    run = all_reduce or total
    return Pair.apply(x, name="copy", there=lambda x: x, back=lambda g: run(t, g.copy()))


def all_reduce(t, x, all_reduce=None):
    """Returns the sum of all ranks' x (sends 2(n-1)/n K bytes). Backward does not change the
    gradient, and sends nothing.

    Use all_reduce if each rank has a partial sum, for instance a product with some rows of a
    matrix. The argument all_reduce is as for `copy`."""
    run = all_reduce or total
    return Pair.apply(x, name="all_reduce", there=lambda x: run(t, x.copy()), back=lambda g: g)


def scatter(t, x, dim):
    """Returns this rank's block of the replicated x along dim, and sends nothing. Backward gathers
    the gradients of all blocks ((n-1)/n K bytes)."""
    length = x.shape[dim]  # `back` uses only `length`, so x can be freed before backward
    return Pair.apply(x, name="scatter", there=lambda x: own_block(t, x, dim),
                      back=lambda g: join(t, g, dim, length))


def gather(t, x, dim, length=None):
    """Returns all ranks' x joined along dim (sends (n-1)/n K bytes). All ranks must compute the
    same results from the joined array. Backward takes this rank's slice of the gradient, and sends
    nothing.

    length: the length of the result along dim. Pass it if the blocks may be unequal. The default is
    n times the length of x."""
    return Pair.apply(x, name="gather", there=lambda x: join(t, x, dim, length),
                      back=lambda g: own_block(t, g, dim))


def all_gather(t, x, dim, length=None):
    """Returns all ranks' x joined along dim (sends (n-1)/n K bytes). Backward sums the gradients of
    the joined array over the ranks, by a reduce-scatter ((n-1)/n K bytes).

    Use all_gather if each rank then computes its own result from the joined array. length: as for
    `gather`."""
    return Pair.apply(x, name="all_gather", there=lambda x: join(t, x, dim, length),
                      back=lambda g: sum_block(t, g, dim))


def reduce_scatter(t, x, dim):
    """Sums all ranks' x, and returns this rank's block of the sum along dim (sends (n-1)/n K
    bytes). Backward is an all-gather ((n-1)/n K bytes)."""
    length = x.shape[dim]
    return Pair.apply(x, name="reduce_scatter", there=lambda x: sum_block(t, x, dim),
                      back=lambda g: join(t, g, dim, length))


def all_to_all(t, x, split, join, length=None):
    """Cuts x along dimension `split` and sends a block to each rank. Returns the received blocks,
    joined along `join`. Sends (n-1)/n of x. Backward does the same with `split` and `join`
    exchanged, and sends the same number of bytes.

    length: the length of the result along `join`. Pass it if n does not divide the length of x
    along `split`, or if the received blocks are unequal. In Ulysses x is (B, T/n, H, D). The heads
    are split and the tokens are joined, and the result is (B, T, H/n, D)."""
    back = None if length is None else x.shape[split]
    return Pair.apply(x, name="all_to_all", there=lambda x: transposed(t, x, split, join, length),
                      back=lambda g: transposed(t, g, join, split, back))


# -- functions of arrays, outside of the graph


@collective
def total(t, x):
    """Returns the sum of all ranks' x, on every rank. Sends 2(n-1)/n K bytes. If x is contiguous,
    the sum is written into x."""
    if backend.accumulate_dtype(x.dtype) == x.dtype:
        return device.all_reduce(t, chunks.contiguous(x))
    flat = chunks.flat(x)
    bounds = chunks.bounds(len(flat), t.size)
    device.mean_block(t, flat, bounds, divisor=1)
    return device.all_gather(t, flat, bounds).reshape(x.shape)


def own_block(t, x, dim):
    """Returns a copy of this rank's block of x along dim."""
    first, end = chunks.bounds(x.shape[dim], t.size)[t.rank : t.rank + 2]
    return x[(slice(None),) * (dim % x.ndim) + (slice(first, end),)].copy()


def join(t, x, dim, length=None):
    """Returns all ranks' blocks x, joined along dim. length: the length of the result along dim.
    With None it is n times the length of x. Raises ValueError if the length of x along dim is not
    the length of this rank's block."""
    length = t.size * x.shape[dim] if length is None else length
    bounds = chunks.bounds(length, t.size)
    first, end = bounds[t.rank : t.rank + 2]
    if x.shape[dim] != end - first:
        raise ValueError(f"rank {t.rank}: wanted this rank's block of an array with {length} "
                         f"elements along dimension {dim}, so {end - first} elements; got "
                         f"{x.shape[dim]} (shape {tuple(x.shape)})")
    xp = backend.xp_of([x])
    rows = xp.moveaxis(x, dim, 0)
    whole = xp.empty((length, *rows.shape[1:]), x.dtype)
    whole[first:end] = rows
    device.all_gather(t, whole.reshape(-1), _scaled(bounds, whole))
    return xp.ascontiguousarray(xp.moveaxis(whole, 0, dim))


def sum_block(t, x, dim):
    """Sums all ranks' x, and returns this rank's block of the sum along dim."""
    xp = backend.xp_of([x])
    rows = xp.moveaxis(x, dim, 0).copy(order="C")  # the reduce-scatter overwrites this copy
    bounds = chunks.bounds(len(rows), t.size)
    own = device.mean_block(t, rows.reshape(-1), _scaled(bounds, rows), divisor=1)
    first, end = bounds[t.rank : t.rank + 2]
    own = own.reshape(end - first, *rows.shape[1:])
    return xp.moveaxis(own, 0, dim).copy(order="C")  # a view would keep `rows` alive


def transposed(t, x, split, join, length=None):
    """Sends a block of x along `split` to each rank. Returns the received blocks joined along
    `join`."""
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
        raise ValueError(f"rank {t.rank}: all_to_all wants a size of dimension {split} that is "
                         f"divisible by the {n} ranks; got {x.shape[split]} (shape "
                         f"{tuple(x.shape)}). For such a size, pass `length`: the sum of the sizes "
                         f"of dimension {join} of all ranks' x")
    return xp.concatenate(list(exchange.all_to_all(t, xp.stack(xp.split(x, n, split)))), join)


def _scaled(bounds, rows):
    """Returns the bounds of blocks, counted in elements. bounds: the same bounds, counted in rows
    of the array `rows`."""
    n_elems = 1
    for d in rows.shape[1:]:
        n_elems *= d
    return [place * n_elems for place in bounds]
