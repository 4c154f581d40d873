"""Tensor parallelism: the weight of a layer is cut, and each rank has a part of it.

The plain form, with the picture of columns and rows: minidl/plain/tensor_parallel.py. Here: biases,
attention, embeddings, widths that the ranks do not divide, sums that travel while the next product
is computed (overlapped.py), and sequence parallelism.

A row layer's bias is added once, after the sum. Attention is cut by heads: qkv in columns, head by
head, and the projection in rows. So a block of a GPT sends 4 all-reduces a step, of B T C elements
each: two forward (`all_reduce`), two backward (`copy`).

Sequence parallelism (`seq=1`, the dimension of tokens): between the row layer and the next column
layer each rank has its block of the tokens only. `all_reduce` becomes `reduce_scatter`, `copy`
becomes `all_gather`: the same bytes, and 1/n of the activations of norms and dropouts. What is
applied to tokens with weights of its own, a norm or a row layer's bias, then has a part of its
gradient on each rank, and `copy` of the weight sums the parts. What a column layer gathers, K
bytes, it keeps for backward; with `gather_again` only its own K/n, and backward sends (n-1)/n K
more: of a block with B T C elements of activations 2 (n-1)/n B T C less are held, and as many sent.

A layer's weight is the slice of the matrix that one rank would have: drawn whole from the
generator, and cut. So every number of ranks trains the same model. Widths and heads need not be
divided by the ranks: `chunks.bounds` cuts them. Inside the regions, where each rank has its own
heads, dropout draws from a generator of its own (`apart`); outside all ranks draw the same.

Sources: Shoeybi et al. 2019 (arXiv 1909.08053); sequences: Korthikanti et al. 2022 (2205.05198).
Test: tests/parallel/model/test_tensor.py   Tutorial: tutorials/13_tensor_parallel.py
"""

from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from minidl import backend, random
from minidl.comm import chunks, ring_blocks
from minidl.comm.labels import named
from minidl.comm.transport.protocol import Transport
from minidl.nn import functional as F
from minidl.nn.layers import Dropout, Embedding, Linear
from minidl.nn.norm import LayerNorm, RMSNorm
from minidl.nn.transformer import CausalSelfAttention
from minidl.ops import linear
from minidl.parallel.model import functions, overlapped


class Part(NamedTuple):
    """What this rank has of a parameter: along dim, which is `repeats` equal pieces (3 of qkv), its
    block of each, piece[bounds[r] : bounds[r+1]]."""

    t: Transport
    dim: int
    bounds: list
    repeats: int


def cut(p, t, dim, bounds=None, repeats=1):
    """Leave in p this rank's part of it, along dim; evenly, or by the bounds of a piece."""
    length, left = divmod(p.shape[dim], repeats)
    part = Part(t, dim, bounds or chunks.bounds(length, t.size), repeats)
    if p.part is not None:  # tied: two layers have it
        if p.part[1:] != (dim, p.part.bounds if bounds is None else bounds, repeats):
            raise ValueError(f"rank {t.rank}: this parameter is cut already, {p.part[1:]}; got "
                             f"{part[1:]}. A tied weight must be cut alike by both layers")
        return
    if left or part.bounds[-1] != length or min(np.diff(part.bounds)) < 1:
        raise ValueError(f"rank {t.rank}: wanted something for each of {t.size} ranks along "
                         f"dimension {dim} of {tuple(p.shape)}; got bounds {part.bounds}, "
                         f"{repeats} times")
    p.array = own_part(part, p.array)  # `p.data =` would ask for the old shape
    p.grad, p.version = None, p.version + 1
    p.declare(part=part)


def own_part(part, array):
    """This rank's part of a whole array, in memory of its own."""
    t, dim, bounds, repeats = part
    xp, (first, end) = backend.xp_of([array]), bounds[t.rank : t.rank + 2]
    rows = xp.moveaxis(array, dim, 0)
    own = rows.reshape(repeats, bounds[-1], *rows.shape[1:])[:, first:end]
    return xp.moveaxis(own.reshape(-1, *rows.shape[1:]), 0, dim).copy(order="C")


def whole(p, array=None):
    """Returns the whole tensor, if p is a part of it; given p.grad, the whole gradient. All ranks
    of its group call. Sends what a ring all-gather of it does."""
    array = p.array if array is None else backend.array_of(array)
    if p.part is None:
        return array
    t, dim, bounds, repeats = p.part
    rows = p._xp.moveaxis(array, dim, 0)
    flat, places = ring_blocks.all_gather_v(t, rows.reshape(-1))
    pieces = p._xp.empty((repeats, bounds[-1], *rows.shape[1:]), array.dtype)
    for r in range(t.size):
        first, end = bounds[r : r + 2]
        pieces[:, first:end] = flat[places[r] : places[r + 1]].reshape(pieces[:, first:end].shape)
    return p._xp.moveaxis(pieces.reshape(-1, *rows.shape[1:]), 0, dim)


def apart(t, generator=None):
    """A generator that draws other numbers on each rank of t; the generator it comes from, the
    default unless given, moves on alike everywhere, and recompute can put it back."""
    seed, stream, counter = (generator or random.default_generator()).take(1)
    # distinct for seeds below 2**48 and streams below 2**20
    return random.Generator((seed + (t.rank + 1 << 48)) % 2**64, (stream + (counter << 20)) % 2**64)


class Divided:
    """A layer of which each rank of t has a part: ColumnLinear(768, 3072, t=t) draws the whole and
    cuts it; `of` makes one of a whole layer, with its parameters, cut, and its hooks."""

    def __init__(self, *args, t, **options):
        whole = {name: options.pop(name) for name in _OF_THE_WHOLE if name in options}
        super().__init__(*args, **whole)
        self.divide(t, **options)

    @classmethod
    def of(cls, layer, t, seq=None, **options):
        new = cls.__new__(cls)
        new.__dict__.update(vars(layer))
        new.divide(t, seq, **options)
        return new

    def divide(self, t, seq):
        self.t, self.seq = t, seq

    def extra_repr(self):
        return f"{super().extra_repr()}, rank {self.t.rank} of {self.t.size}"


_OF_THE_WHOLE = ("bias", "generator", "dropout", "padding_idx", "eps")  # a layer's own arguments


class ColumnLinear(Divided, Linear):
    """y = x W^T + b, of which this rank computes its columns of y; x (..., in) is replicated, with
    `seq` this rank's block of the tokens. y (..., out / n), or with gather (..., out) on all ranks.

    overlap: the gradient of x is summed while that of W is computed (overlapped.py)
    gather_again: with `seq`, backward gathers all tokens again, and only this rank's are kept
    all_reduce: as in functions.copy"""

    def divide(self, t, seq=None, gather=False, bounds=None, repeats=1, overlap=False,
               all_reduce=None, gather_again=False):
        super().divide(t, seq)
        self.gather, self.overlap, self.all_reduce = gather, overlap, all_reduce
        self.again = gather_again
        if gather_again and seq is None:
            raise ValueError(f"rank {t.rank}: gather_again is for sequence parallelism, where a "
                             "column layer gathers the tokens; got seq None")
        for p in self.parameters():
            cut(p, t, 0, bounds, repeats)

    def forward(self, x):
        if self.overlap and self.seq is None:
            y = overlapped.column_linear(self.t, x, self.weight, self.bias, self.all_reduce)
        elif self.again:
            y = GatheredLinear.apply(x, self.weight, self.bias, t=self.t, dim=self.seq)
        else:
            y = F.linear(arriving(self, x), self.weight, self.bias)
        return functions.gather(self.t, y, -1, self.out_features) if self.gather else y


class GatheredLinear(linear.Linear):
    """linear(all_gather(x), w, b) that saves this rank's x alone."""

    op = "linear"

    def forward(self, x, w, b, t, dim):
        self.t, self.dim = t, dim
        with named("all_gather.forward"):
            y = super().forward(functions.join(t, x, dim), w, b)
        self.save(x if self.needs[1] else None, w if self.needs[0] else None)
        return y

    def backward(self, gy):
        x, w = self.saved
        if x is not None:
            with named("all_gather.again"):
                x = linear.as_matrix(functions.join(self.t, x, self.dim))
        gx, gw, gb = self._gradients(gy, x, w)
        if gx is not None:
            with named("all_gather.backward"):
                gx = functions.sum_block(self.t, gx, self.dim)
        return gx, gw, gb


class RowLinear(Divided, Linear):
    """y = x W^T + b from this rank's columns of x (..., in / n), or with scatter the replicated x:
    a partial sum, summed over the ranks, and b once. y (..., out) is replicated, with `seq` this
    rank's block of the tokens.

    overlap: so many parts of the rows; one is summed while the next is computed (overlapped.py)"""

    def divide(self, t, seq=None, scatter=False, bounds=None, overlap=0, all_reduce=None):
        super().divide(t, seq)
        self.scatter, self.overlap, self.all_reduce = scatter, overlap, all_reduce
        cut(self.weight, t, 1, bounds)

    def forward(self, x):
        if self.scatter:
            x = functions.scatter(self.t, x, -1)
        if self.overlap and self.seq is None:
            y = overlapped.row_linear(self.t, x, self.weight, self.overlap, self.all_reduce)
        else:
            y = leaving(self, F.linear(x, self.weight))
        if self.bias is None:
            return y
        b = of_block(self, self.bias)
        return y + (b if b.dtype == y.dtype else b.to(y.dtype))  # under autocast y is float16


def arriving(layer, x):
    """x for what each rank computes of its own: the same, or gathered from the ranks' tokens."""
    if layer.seq is None:
        return functions.copy(layer.t, x, layer.all_reduce)
    return functions.all_gather(layer.t, x, layer.seq)


def leaving(layer, y):
    """The sum of the ranks' y, on all ranks, or each with its block of the tokens."""
    if layer.seq is None:
        return functions.all_reduce(layer.t, y, layer.all_reduce)
    if y.shape[layer.seq] % layer.t.size:  # the next layer gathers blocks of equal length
        raise ValueError(f"rank {layer.t.rank}: sequence parallelism wants a number of tokens that "
                         f"{layer.t.size} ranks divide; got shape {tuple(y.shape)}, dimension "
                         f"{layer.seq}."
                         " Pad the sequences")
    return functions.reduce_scatter(layer.t, y, layer.seq)


def of_block(layer, p):
    """The replicated weight p for this rank's tokens: its gradient is the sum over the ranks."""
    return p if p is None or layer.seq is None else functions.copy(layer.t, p)


class ParallelAttention(Divided, CausalSelfAttention):
    """CausalSelfAttention of which each rank has some of the heads: any number, if one at least."""

    def divide(self, t, seq=None, overlap=0, all_reduce=None, gather_again=False):
        super().divide(t, seq)
        if self.n_heads < t.size:
            raise ValueError(f"rank {t.rank}: wanted a head for each of {t.size} ranks; got "
                             f"{self.n_heads} heads. Use fewer ranks along tp")
        width = self.qkv.in_features // self.n_heads
        heads = chunks.bounds(self.n_heads, t.size)
        columns = [width * h for h in heads]
        options = dict(seq=seq, bounds=columns, overlap=overlap, all_reduce=all_reduce)
        self.qkv = ColumnLinear.of(self.qkv, t, repeats=3, gather_again=gather_again, **options)
        self.proj = RowLinear.of(self.proj, t, **options)
        self.n_heads = heads[t.rank + 1] - heads[t.rank]

    def forward(self, x, **mask):
        draws = self.training and self.dropout
        with random.using(apart(self.t)) if draws else nullcontext():
            return super().forward(x, **mask)


# -- what lies between, when each rank has a block of the tokens


class SequenceLayerNorm(Divided, LayerNorm):
    """LayerNorm of this rank's tokens; the gradients of weight and bias are all ranks'."""

    def forward(self, x):
        weight, bias = of_block(self, self.weight), of_block(self, self.bias)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class SequenceRMSNorm(Divided, RMSNorm):
    """RMSNorm, the same."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, of_block(self, self.weight), self.eps)


class SequenceEmbedding(Divided, Embedding):
    """Embedding of all ids, of which this rank goes on with its block along dimension `seq`."""

    def forward(self, ids):
        return functions.scatter(self.t, super().forward(ids), self.seq)


class SequenceDropout(Divided, Dropout):
    """Dropout of this rank's tokens: each rank draws for its own."""

    def forward(self, x):
        if not (self.training and self.p):
            return x
        return self.drop(x, self.p, generator=apart(self.t, self.generator))


def sequence_norm(layer, t, seq=1):
    """A LayerNorm or RMSNorm as its form for this rank's tokens."""
    forms = {LayerNorm: SequenceLayerNorm, RMSNorm: SequenceRMSNorm}
    if type(layer) not in forms:
        raise TypeError(f"rank {t.rank}: wanted a LayerNorm or RMSNorm, which go token by token; "
                        f"got {type(layer).__name__}")
    return forms[type(layer)].of(layer, t, seq)
