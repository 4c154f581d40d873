"""Tensor parallelism: the weight of a layer is cut, and each rank has a part of it.

The plain form, with the picture of columns and rows: minidl/plain/tensor_parallel.py. Here layers
have biases, and attention and embeddings are divided, too. Widths need not be multiples of the
number of ranks. Sums may be sent while the next product is computed (overlapped.py). Sequence
parallelism is possible.

A row layer's bias is added once, after the sum. Attention is cut by heads: the qkv layer is a
column layer, and each rank gets the columns of its heads. The projection is a row layer. So a block
of a GPT runs 4 all-reduces in a step: two in forward (`all_reduce`) and two in backward (`copy`).
Each all-reduce has B T C elements, for B texts of T tokens and a width of C.

Sequence parallelism is chosen by `seq=1` (the tokens are dimension 1). Between a row layer and the
next column layer, each rank then has only its block of the tokens. `all_reduce` becomes
`reduce_scatter`, and `copy` becomes `all_gather`. The number of sent bytes stays the same. Norms
and dropouts hold 1/n of the activations. A norm and a row layer's bias are applied only to this
rank's tokens. So each rank has only a part of the gradients of the norm's weights and of the bias.
The backward of `copy` sums these parts.

A column layer gathers its input, K bytes, and keeps it for backward. With `gather_again` the rank
keeps only its own K/n bytes, and backward gathers the rest again. This sends (n-1)/n K more bytes.
In a block of a GPT, a rank then keeps 2 (n-1)/n B T C fewer elements for backward. But the rank
sends this number of elements more.

A layer draws the random numbers of the whole matrix, and keeps its slice. So any number of ranks
trains the same model. `chunks.bounds` cuts widths and heads. In attention each rank has its own
heads, so dropout there uses a different generator on each rank (`apart`). Elsewhere all ranks draw
the same numbers.

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
    """The part of a parameter that this rank has.

    Dimension `dim` consists of `repeats` equal pieces (3 for qkv). Rank r has the part
    piece[bounds[r] : bounds[r+1]] of each piece."""

    t: Transport
    dim: int
    bounds: list
    repeats: int


def cut(p, t, dim, bounds=None, repeats=1):
    """Replaces p's array by this rank's part along dim. bounds, repeats: as in Part. With
    bounds=None the parts are equal. Raises ValueError if a rank gets no part."""
    length, left = divmod(p.shape[dim], repeats)
    part = Part(t, dim, bounds or chunks.bounds(length, t.size), repeats)
    if p.part is not None:  # p is tied: another layer has already cut p
        if p.part[1:] != (dim, p.part.bounds if bounds is None else bounds, repeats):
            raise ValueError(f"rank {t.rank}: two layers that share a weight must cut it in the "
                             f"same way. The first layer cut dimension {p.part.dim} at the indices "
                             f"{p.part.bounds} in each of {p.part.repeats} pieces; got a cut of "
                             f"dimension {dim} at the indices {part.bounds} in each of {repeats} "
                             "pieces")
        return
    if left or part.bounds[-1] != length or min(np.diff(part.bounds)) < 1:
        raise ValueError(f"rank {t.rank}: wanted at least one row or column for each of {t.size} "
                         f"ranks, along dimension {dim} of a weight of shape {tuple(p.shape)}; got "
                         f"{repeats} pieces, each cut at the indices {part.bounds}, so that a rank "
                         "has nothing. Use fewer ranks along tp")
    p.array = own_part(part, p.array)  # not `p.data =`, which wants the old shape
    p.grad, p.version = None, p.version + 1
    p.declare(part=part)


def own_part(part, array):
    """Returns a copy of this rank's part of a whole array."""
    t, dim, bounds, repeats = part
    xp, (first, end) = backend.xp_of([array]), bounds[t.rank : t.rank + 2]
    rows = xp.moveaxis(array, dim, 0)
    own = rows.reshape(repeats, bounds[-1], *rows.shape[1:])[:, first:end]
    return xp.moveaxis(own.reshape(-1, *rows.shape[1:]), 0, dim).copy(order="C")


def whole(p, array=None):
    """Returns the undivided array of parameter p. If p is not divided, returns p's array. To get
    the undivided gradient, pass array=p.grad. Collective over the ranks of p's group: a ring
    all-gather."""
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
    """Returns a generator that draws different numbers on each rank of t. It is made from
    `generator` (by default from the default generator). The state of `generator` itself changes in
    the same way on all ranks, so recompute can restore this state."""
    seed, stream, counter = (generator or random.default_generator()).take(1)
    # Each rank and each call get a different pair (seed, stream), if all seeds are below 2**48 and
    # all streams are below 2**20.
    return random.Generator((seed + (t.rank + 1 << 48)) % 2**64, (stream + (counter << 20)) % 2**64)


class Divided:
    """The base class of layers that are divided over the ranks of t.

    ColumnLinear(768, 3072, t=t) draws the whole weight and cuts it. `of` makes a divided layer from
    an undivided layer: it cuts the layer's parameters, and keeps the layer's hooks."""

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


_OF_THE_WHOLE = ("bias", "generator", "dropout", "padding_idx", "eps")  # for the undivided layer


class ColumnLinear(Divided, Linear):
    """Computes this rank's columns of y = x W^T + b.

    x (..., in) is replicated. With `seq`, x is this rank's block of the tokens. Returns y
    (..., out / n), or with gather=True (..., out) on all ranks.

    overlap: if True, the gradient of x is summed over ranks while the gradient of W is computed
    (overlapped.py)
    gather_again: only with `seq`. If True, the layer keeps only this rank's tokens, and backward
    gathers all tokens again
    all_reduce: as in functions.copy"""

    def divide(self, t, seq=None, gather=False, bounds=None, repeats=1, overlap=False,
               all_reduce=None, gather_again=False):
        super().divide(t, seq)
        self.gather, self.overlap, self.all_reduce = gather, overlap, all_reduce
        self.again = gather_again
        if gather_again and seq is None:
            raise ValueError(f"rank {t.rank}: gather_again=True wants sequence parallelism, where "
                             "a column layer gathers the tokens; got seq=None. Pass seq=1")
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
    """Computes linear(all_gather(x), w, b). Saves only this rank's x."""

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
    """Computes y = x W^T + b from this rank's columns of x. Partial sums are summed over the ranks.

    x is (..., in / n). With scatter=True, x (..., in) is replicated. y (..., out) is replicated.
    With `seq`, y is this rank's block of the tokens. b is added once.

    overlap: the number of parts into which the rows are cut, or 0. One part is summed over ranks
    while the next part is computed (overlapped.py)"""

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
    """Returns the input of a column layer: x itself, or with `seq` the tokens of all ranks."""
    if layer.seq is None:
        return functions.copy(layer.t, x, layer.all_reduce)
    return functions.all_gather(layer.t, x, layer.seq)


def leaving(layer, y):
    """Returns the sum of the ranks' y. With `seq` returns only this rank's block of the tokens.
    Raises ValueError if the number of tokens is not a multiple of the number of ranks."""
    if layer.seq is None:
        return functions.all_reduce(layer.t, y, layer.all_reduce)
    if y.shape[layer.seq] % layer.t.size:  # the next layer gathers blocks of equal length
        raise ValueError(f"rank {layer.t.rank}: sequence parallelism wants a number of tokens "
                         f"divisible by {layer.t.size}, the number of ranks; got "
                         f"{y.shape[layer.seq]} tokens (dimension {layer.seq} of shape "
                         f"{tuple(y.shape)}). Pad the sequences")
    return functions.reduce_scatter(layer.t, y, layer.seq)


def of_block(layer, p):
    """Returns the replicated weight p. With `seq` the gradient of p is summed over the ranks,
    because each rank applies p to its own tokens."""
    return p if p is None or layer.seq is None else functions.copy(layer.t, p)


class ParallelAttention(Divided, CausalSelfAttention):
    """CausalSelfAttention with some of the heads on each rank. Each rank needs at least one head.
    Ranks may have different numbers of heads."""

    def divide(self, t, seq=None, overlap=0, all_reduce=None, gather_again=False):
        super().divide(t, seq)
        if self.n_heads < t.size:
            raise ValueError(f"rank {t.rank}: wanted at least one head for each of {t.size} "
                             f"ranks; got {self.n_heads} heads. Use fewer ranks along tp")
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


# -- layers between the divided layers, for sequence parallelism: a rank has a block of the tokens


class SequenceLayerNorm(Divided, LayerNorm):
    """LayerNorm of this rank's tokens. The gradients of weight and bias are summed over ranks."""

    def forward(self, x):
        weight, bias = of_block(self, self.weight), of_block(self, self.bias)
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class SequenceRMSNorm(Divided, RMSNorm):
    """RMSNorm of this rank's tokens. The gradient of the weight is summed over ranks."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, of_block(self, self.weight), self.eps)


class SequenceEmbedding(Divided, Embedding):
    """Embedding of all ids. Returns this rank's block along dimension `seq`."""

    def forward(self, ids):
        return functions.scatter(self.t, super().forward(ids), self.seq)


class SequenceDropout(Divided, Dropout):
    """Dropout of this rank's tokens. Each rank draws different numbers."""

    def forward(self, x):
        if not (self.training and self.p):
            return x
        return self.drop(x, self.p, generator=apart(self.t, self.generator))


def sequence_norm(layer, t, seq=1):
    """Returns a SequenceLayerNorm or SequenceRMSNorm made from `layer`, a LayerNorm or RMSNorm.
    Raises TypeError for another layer."""
    forms = {LayerNorm: SequenceLayerNorm, RMSNorm: SequenceRMSNorm}
    if type(layer) not in forms:
        raise TypeError(f"rank {t.rank}: sequence parallelism wants a LayerNorm or RMSNorm, which "
                        f"works on each token alone; got {type(layer).__name__}")
    return forms[type(layer)].of(layer, t, seq)
