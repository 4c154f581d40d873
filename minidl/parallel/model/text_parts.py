"""Divides a text over ranks. Finds which tokens a rank has, and which keys its queries see. Also
cuts the mask and the random numbers of dropout.

Suppose that the text of a causal attention is cut into n pieces, one for each rank. Then rank 0
computes one block, and rank n-1 computes n blocks. The zigzag order cuts the text into 2n chunks,
and gives rank r the chunks r and 2n-1-r:

    n = 4       chunk 0 1 2 3 4 5 6 7
    rank              0 1 2 3 3 2 1 0

If the keys come from a lower rank, all queries of rank r see the first half of these keys. If the
keys come from a higher rank, the second half of rank r's queries sees all keys. In the two cases
rank r has the same work.

If the length of the text is not a multiple of the number of pieces, `chunks.bounds` cuts the text.
Masks and dropout use positions in the whole text, and the ranks' generators have the same state. So
the result is the same as on one rank with the whole text. (With dropout NumPy computes attention,
because the kernels count positions from 0.)

Source: Grattafiori et al. 2024 (Llama 3, arXiv 2407.21783), section 3.3.2: the zigzag order.
Test: tests/parallel/model/test_context.py   Tutorial: tutorials/22_long_context.py
"""

import math
from itertools import pairwise

from minidl import backend
from minidl.comm import chunks
from minidl.ops import dropout as drop

# ---- which tokens a rank has, and which keys it sees ----


def chunks_of(rank, n, order):
    """Returns (the number of pieces of the text, the indices of the pieces that `rank` has). Raises
    ValueError for an unknown order."""
    if order == "zigzag":
        return 2 * n, (rank, 2 * n - 1 - rank)
    if order == "contiguous":
        return n, (rank,)
    raise ValueError(f"rank {rank}: wanted order='zigzag' or order='contiguous'; got {order!r}")


def pieces(length, n, rank, order="zigzag"):
    """Returns a list of pairs (first, end), for a text of `length` tokens. `rank` of n ranks has
    the tokens at the positions first, ..., end - 1."""
    n_pieces, mine = chunks_of(rank, n, order)
    bounds = chunks.bounds(length, n_pieces)
    return [(bounds[i], bounds[i + 1]) for i in mine]


def positions(length, n, rank, order="zigzag", xp=None):
    """Returns a 1-d array: the positions of the tokens that `rank` of n ranks has, in a text of
    `length` tokens."""
    xp = xp or backend.xp_of([])
    return xp.concatenate([xp.arange(*piece) for piece in pieces(length, n, rank, order)])


def lengths(length, n, order="zigzag"):
    """Returns a list with the number of tokens of each rank. The numbers differ by at most two."""
    return [sum(b - a for a, b in pieces(length, n, r, order)) for r in range(n)]


def split(x, t, order="zigzag", dim=1):
    """Returns this rank's part of x. x: an array or a Tensor. dim: the dimension of the tokens in
    x. Shift labels before you split them, because the next token may be on another rank."""
    xp = backend.xp_of([backend.array_of(x)])
    at = positions(x.shape[dim], t.size, t.rank, order, xp)
    return x[(slice(None),) * dim + (at,)]


def seen(rank, owner, length, n, is_causal, order):
    """Returns (queries, keys, causal), or None if `rank` sees no key of `owner`.

    queries: the slice of the queries of `rank` that see keys of `owner`. keys: the slice of the
    keys of `owner` that these queries see. causal: True if the causal triangle masks a part of
    these keys. length: the number of tokens of the whole text."""
    everything = slice(None)
    if not is_causal or owner == rank:
        return everything, everything, is_causal
    if order == "contiguous":
        return (everything, everything, False) if owner < rank else None
    first, end = pieces(length, n, min(owner, rank), order)[0]
    if owner < rank:
        return everything, slice(end - first), False
    return slice(end - first, None), everything, False


def pairs(length, n, rank, order="zigzag"):
    """Returns a list with the number of (query, key) pairs that `rank` computes in each of the n
    steps of causal ring attention."""
    m, steps = lengths(length, n, order), []
    for s in range(n):
        owner = (rank - s) % n
        part = seen(rank, owner, length, n, True, order)
        rows, keys = (len(range(m[r])[p]) for r, p in zip((rank, owner), part)) if part else (0, 0)
        steps.append(rows * (rows + 1) // 2 if part and part[2] else rows * keys)
    return steps


def check_part(t, length, n_here, order):
    """Returns a list with each rank's number of tokens, for a text of `length` tokens. Raises
    ValueError if this rank's number is not n_here."""
    chunks_of(t.rank, t.size, order)  # raises an error if the order is unknown
    n_each = lengths(length, t.size, order)
    if n_each[t.rank] != n_here:
        raise ValueError(f"rank {t.rank}: wanted {n_each[t.rank]} tokens on this rank, for a text "
                         f"of {length} tokens in {order} order on {t.size} ranks; got {n_here}")
    return n_each


# ---- mask and dropout of the whole text ----


def as_mask(t, mask):
    """Returns the array of `mask` if `mask` is a Tensor, else `mask` itself. Raises ValueError for
    a Tensor that requires a gradient."""
    if getattr(mask, "requires_grad", False):
        raise ValueError(f"rank {t.rank}: attention over a text in parts wants a mask without a "
                         "gradient; got a mask with requires_grad=True. Pass mask.detach()")
    return backend.array_of(mask)


def mask_at(mask, queries, keys):
    """Returns the part of a whole text's mask at these positions of queries and keys. A dimension
    of length 1 does not change, because it broadcasts."""
    if callable(mask):
        return mask(queries, keys)
    for axis, at in ((-2, queries), (-1, keys)):
        if mask.shape[axis] > 1:
            mask = mask.take(at, axis)
    return mask


class OfWhole:
    """Attention for a part of a text, or for some of the heads. Mask and dropout are as for the
    whole text."""

    def forward(self, *inputs, whole, **options):
        self.whole = whole
        return super().forward(*inputs, dropout_p=0.0, generator=None, **options)

    def _options(self, q, k, *others):
        super()._options(q, k, *others)
        self._begin(q, k, **self.whole)

    def _begin(self, q, k, t, heads, tokens, mask, dropout_p, generator):
        """Sets the attributes for the whole text. self.at becomes the positions of the queries and
        of the keys.

        heads: (index of the first head of this rank, number of all heads). tokens: (number of
        queries, number of keys) in the whole text."""
        self.t, self.heads, self.tokens, self.mask = t, heads, tokens, mask
        self.at = [self.xp.arange(n) for n in tokens]
        drop.check_probability(dropout_p, self.op)
        self.dropout_p = dropout_p
        if dropout_p:
            self.state = drop.reserve(generator, len(q) * heads[1] * math.prod(tokens))

    def _attend(self, *arrays):
        self.ours = self.ours and not self.dropout_p
        return super()._attend(*arrays)

    def _keep(self, b, h, queries):
        rows, (n_queries, n_keys), (first, n_heads) = self.at[0][queries], self.tokens, self.heads
        jumps = (self.xp.flatnonzero(self.xp.diff(rows) != 1) + 1).tolist()
        start = (b * n_heads + first + h) * n_queries
        keep = [drop.keep_mask(self.xp, self.state, (start + int(rows[i])) * n_keys,
                               (j - i) * n_keys, self.dropout_p)
                for i, j in pairwise([0, *jumps, len(rows)])]
        return self.xp.concatenate(keep).reshape(-1, n_keys)[:, self.at[1]]


class PartDropout(drop.Dropout):
    """Dropout of this rank's tokens, which are dimension 1 of x (B, L, ...). The position of a
    token in the whole text decides its random numbers."""

    op = "dropout"

    def forward(self, x, p, generator, t, order, length):
        self.p, length = p, t.size * x.shape[1] if length is None else length
        check_part(t, length, x.shape[1], order)
        row = math.prod(x.shape[2:])
        self.state = drop.reserve(generator, len(x) * length * row)
        self.runs = [((b * length + first) * row, (end - first) * row) for b in range(len(x))
                     for first, end in pieces(length, t.size, t.rank, order)]
        return self._masked(x)

    def backward(self, gy):
        return self._masked(gy)

    def _masked(self, x):
        keep = [drop.keep_mask(self.xp, self.state, *run, self.p) for run in self.runs]
        y = x * self.xp.concatenate(keep).reshape(x.shape)
        y *= x.dtype.type(drop.inverse_keep(self.p))
        return y


def dropout(x, p=0.5, training=True, *, generator=None, **part):
    """Returns functional.dropout of this rank's part of a text. It drops the same elements as a
    single rank that has the whole text."""
    return PartDropout.apply(x, p=p, generator=generator, **part) if training and p else x
