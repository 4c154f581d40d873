"""Context parallelism: a text longer than a rank holds. Each rank has s/n of its tokens.

All layers but attention look at a token alone. In attention every query wants all keys:

    ring        K and V go around the ring, and each rank adds to its queries' result what the block
                that is there gives. Two partial results of a query, o and lse = log sum exp(score):
                    L = log(e^lse1 + e^lse2)        o = e^(lse1 - L) o1 + e^(lse2 - L) o2
                Backward sends K and V around again; with P = e^(score - lse) of all keys each block
                gives its part of gq, which stays, and of gk and gv, which travel one step behind.
    Ulysses     all-to-all: from s/n tokens of all heads to all tokens of h/n heads, attention as
                it is on one rank, and back.

Causal, with the text cut into n pieces, rank 0 has one block to do and rank n-1 all n. The zigzag
order cuts it into 2n chunks and gives rank r the chunks r and 2n-1-r:

    n = 4       chunk 0 1 2 3 4 5 6 7       Of a rank before it a rank sees the first half of the
    rank              0 1 2 3 3 2 1 0       keys, with all its queries; of one behind it all keys,
                                            with the second half of its queries: the same work.

Elements sent per rank, of b texts, width e of a head, h query and g key heads, c = b s/n e:

    ring        2 g c (n-1), in n-1 messages; backward the same, and as much of gk and gv, in the
                dtype of sums. (A block's own rank adds its part at the end: n-1 hops bring the
                others' home, not n.)
    Ulysses     (2 h + 2 g) c (n-1)/n each way; g is n where n > g: key heads are sent twice.

So ring : Ulysses = n g / (h + g) forward. With as many key heads as query heads they are equal at
n = 2, and Ulysses, which wants h to be a multiple of n, sends less on more ranks.

Ring attention equals attention on one rank but for roundings (the order of the sums), Ulysses to
the bit; both to the bit on one rank. That holds of every mask, of any length (`chunks.bounds` cuts
what the ranks do not divide), and of dropout: its draws go by the place in the whole text, with
generators that are alike on all ranks. (NumPy then computes the blocks: the kernels count places
from 0. On the ring a block draws the whole rows of its queries, n times what one rank draws.)

Sources: Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889); Jacobs et al. 2023 (arXiv 2309.14509).
Test: tests/parallel/model/test_context.py   Tutorial: tutorials/22_long_context.py
"""

import math
from functools import partial
from itertools import pairwise

from minidl import backend
from minidl.comm import chunks, ring_blocks
from minidl.comm.collective import collective
from minidl.fused import attention as fused
from minidl.nn.layers import Dropout
from minidl.nn.models import GPT
from minidl.nn.transformer import CausalSelfAttention, MultiheadAttention
from minidl.ops import dropout as drop
from minidl.ops.attention import Attention, SelfAttention
from minidl.parallel.model import functions

# ---- who has which tokens, and who sees whom ----


def chunks_of(rank, n, order):
    """(pieces of the text, those that `rank` has of them)."""
    if order == "zigzag":
        return 2 * n, (rank, 2 * n - 1 - rank)
    if order == "contiguous":
        return n, (rank,)
    raise ValueError(f"rank {rank}: order is 'zigzag' or 'contiguous', got {order!r}")


def pieces(length, n, rank, order="zigzag"):
    """[(first, end)] of the places, in a text of `length` tokens, of what `rank` of n has."""
    n_pieces, mine = chunks_of(rank, n, order)
    bounds = chunks.bounds(length, n_pieces)
    return [(bounds[i], bounds[i + 1]) for i in mine]


def positions(length, n, rank, order="zigzag", xp=None):
    """The places in a text of `length` tokens of those that `rank` of n has, in its order."""
    xp = xp or backend.xp_of([])
    return xp.concatenate([xp.arange(*piece) for piece in pieces(length, n, rank, order)])


def lengths(length, n, order="zigzag"):
    """How many of the tokens each rank has: they differ by two at most."""
    return [sum(b - a for a, b in pieces(length, n, r, order)) for r in range(n)]


def split(x, t, order="zigzag", dim=1):
    """This rank's part of x, an array or a Tensor, along its dimension `dim` of tokens. Labels are
    shifted before they are split: the successor of a rank's last token is another's."""
    xp = backend.xp_of([getattr(x, "_data", x)])
    at = positions(x.shape[dim], t.size, t.rank, order, xp)
    return x[(slice(None),) * dim + (at,)]


def seen(rank, owner, length, n, is_causal, order):
    """Which of its queries `rank` computes against which of the keys of `owner`: (queries, keys,
    whether with the causal triangle); None: there is nothing to see."""
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
    """Pairs of a query and a key that `rank` computes in each of the n steps, causal."""
    m, steps = lengths(length, n, order), []
    for s in range(n):
        owner = (rank - s) % n
        part = seen(rank, owner, length, n, True, order)
        rows, keys = (len(range(m[r])[p]) for r, p in zip((rank, owner), part)) if part else (0, 0)
        steps.append(rows * (rows + 1) // 2 if part and part[2] else rows * keys)
    return steps


# ---- around the ring ----


@collective(own_args=("visit",), own_rows=("block",))
def pass_around(t, block, visit, rows=None):
    """visit(owner, its block) for every rank's block, this rank's own first, then its left
    neighbour's. The next one is on its way while `visit` computes. rows: how many each rank's block
    has along its first axis, if they differ. Sends all blocks but the right neighbour's, in n-1
    messages."""
    for step in range(t.size):
        coming = _next(t, block, rows, step) if step < t.size - 1 else None
        visit((t.rank - step) % t.size, block)
        block = coming() if coming else None


@collective(own_args=("visit",), own_rows=("block",))
def pass_around_and_sum(t, block, visit, rows=None):
    """As pass_around; `visit` returns a new array, this rank's part of a sum that the owner of the
    block is to have. Returns this rank's own sum. Every sum follows its block, one step behind:
    beside the blocks n-1 messages with all sums but this rank's own."""
    left, right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
    own = sending = None
    for step in range(t.size):
        if step > 1:  # before the next block: it is sent before that one
            total = backend.xp_of([block]).empty(block.shape, own.dtype)
            arriving = t.irecv(total, left)
        coming = _next(t, block, rows, step) if step < t.size - 1 else None
        part = visit((t.rank - step) % t.size, block)
        block = coming() if coming else None
        if step == 0:
            own = part
            continue
        if step > 1:
            arriving.wait()
            total += part
            part = total
            sending.wait()
        sending = t.isend(part, right)
    if t.size > 1:
        own += t.recv(backend.xp_of([own]).empty_like(own), left)
        sending.wait()
    return own


def _next(t, block, rows, step):
    """Send the block on, begin to receive the next: a function that waits for it."""
    left, right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
    n_rows = len(block) if rows is None else rows[(left - step) % t.size]
    coming = backend.xp_of([block]).empty((n_rows, *block.shape[1:]), block.dtype)
    requests = t.irecv(coming, left), t.isend(block, right)

    def wait():
        for request in requests:
            request.wait()
        return coming

    return wait


# ---- attention ----


def merge(xp, o, lse, o2, lse2):
    """Two partial results of the same queries as one, in place of the first: o (..., L, E) and lse
    (..., L), each over other keys; lse is -inf of a query that saw none."""
    both = xp.logaddexp(lse, lse2)
    finite = xp.maximum(both, xp.finfo(both.dtype).min)  # -inf less -inf is nothing
    o *= xp.exp(lse - finite)[..., None]
    o += xp.exp(lse2 - finite)[..., None] * o2
    lse[...] = both


class OfWhole:
    """Attention of a part of a text, or of some of its heads, with the whole's mask and dropout."""

    def forward(self, *inputs, whole, **options):
        self.whole = whole
        return super().forward(*inputs, dropout_p=0.0, generator=None, **options)

    def _options(self, q, k, *others):
        super()._options(q, k, *others)
        self._begin(q, k, **self.whole)

    def _begin(self, q, k, t, heads, tokens, mask, dropout_p, generator):
        """heads: the first one's number, of how many. tokens: (queries, keys) of the whole.
        self.at: the places in it of the queries and of the keys that are here."""
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


def mask_at(mask, queries, keys):
    """What a mask of the whole text says of these places; a dimension of 1 stands for all."""
    if callable(mask):
        return mask(queries, keys)
    for axis, at in ((-2, queries), (-1, keys)):
        if mask.shape[axis] > 1:
            mask = mask.take(at, axis)
    return mask


class Ring(OfWhole):
    """Attention whose keys come block by block: a block's part is the one-rank class's own, by the
    kernel where that fits, with its log-sum-exp; sums over blocks are float32 (float64)."""

    def _begin(self, q, k, t, order, length, **options):
        n_tokens, self.order, self.causal = [a.shape[2] for a in (q, k)], order, self.is_causal
        if self.causal and n_tokens[0] != n_tokens[1]:
            raise ValueError(f"rank {t.rank}: causal ring attention wants as many queries as keys; "
                             f"got {n_tokens[0]} and {n_tokens[1]} here")
        whole = [t.size * m if length is None else length for m in n_tokens]
        n_each = [check_part(t, *pair, order) for pair in zip(whole, n_tokens)][1]
        self.sizes = [2 * len(k) * k.shape[1] * k.shape[3] * m for m in n_each]
        super()._begin(q, k, t, (0, q.shape[1]), whole, **options)

    def _part(self, owner, q, kv):
        """(queries, keys, (q, k, v, mask)) of what is seen of a block, k and v once for each query
        head; None: nothing."""
        t, xp, mask = self.t, self.xp, None
        if (part := seen(t.rank, owner, self.tokens[1], t.size, self.causal, self.order)) is None:
            return None
        rows, keys, self.is_causal = part
        q, (k, v) = q[:, :, rows], kv[:, :, :, keys]
        if not q.shape[2] * k.shape[2]:
            return None
        if (n_groups := q.shape[1] // k.shape[1]) > 1:
            k, v = (xp.repeat(a, n_groups, axis=1) for a in (k, v))
        self.q_shape, self.n_keys = q.shape, k.shape[2]
        if self.mask is not None or self.dropout_p:
            self.at = [positions(n, t.size, r, self.order, xp)[p]
                       for n, r, p in zip(self.tokens, (t.rank, owner), part)]
        if self.mask is not None:
            mask = mask_at(self.mask, *self.at)
        return rows, keys, (q, k, v, mask)

    def _blind(self, mask):
        """Which queries see no key of the block, to (B, H, L)."""
        sees = mask if mask.dtype == bool else mask > -math.inf
        if self.is_causal:
            sees = sees & self.xp.tri(self.q_shape[2], self.n_keys, dtype=bool)
        return ~sees.any(axis=-1)

    def _attend(self, q, k, v, mask):
        attend, xp, results = super()._attend, self.xp, []

        def visit(owner, block):
            kv = block.reshape(2, *k.shape[:2], -1, k.shape[3])
            if (part := self._part(owner, q, kv)) is None:
                return
            rows, _, arrays = part
            o, lse = attend(*arrays)
            if arrays[3] is not None:
                lse[...] = xp.where(self._blind(arrays[3]), -math.inf, lse)
            if not results:  # this rank's own block, or its first with keys: for all its queries
                results[:] = o.astype(self.dtype, copy=False), lse
            else:
                merge(xp, results[0][:, :, rows], results[1][:, :, rows], o, lse)

        pass_around(self.t, xp.stack((k, v)).reshape(-1), visit, self.sizes)
        o, lse = results or (xp.zeros(q.shape, self.dtype), xp.zeros(q.shape[:3], self.dtype))
        lse[lse == -math.inf] = 0  # as on one rank where a query sees no key at all
        return o.astype(q.dtype, copy=False), lse

    def _attend_backward(self, go, q, k, v, o, lse, mask, out=None):
        backward, xp = super()._attend_backward, self.xp
        gq, shape = xp.zeros(q.shape, self.dtype), (2, *k.shape[:2], -1, k.shape[3])

        def visit(owner, block):
            kv = block.reshape(shape)
            gkv = xp.zeros(kv.shape, self.dtype)
            if (part := self._part(owner, q, kv)) is not None:
                rows, keys, (q_part, k, v, mask) = part
                gq_part, *parts, _ = backward(
                    go[:, :, rows], q_part, k, v, o[:, :, rows],
                    xp.ascontiguousarray(lse[:, :, rows]), mask)
                gq[:, :, rows] += gq_part
                for g, g_part in zip(gkv, parts):
                    heads = g.shape[0], g.shape[1], -1, *g_part.shape[2:]
                    g[:, :, keys] = g_part.reshape(heads).sum(axis=2, dtype=self.dtype)
            return gkv.reshape(-1)

        block = xp.stack((k, v)).reshape(-1)
        gkv = pass_around_and_sum(self.t, block, visit, self.sizes)
        grads = gq, *gkv.reshape(shape)
        if out is None:
            return (*grads, None)
        for i, g in enumerate(grads):
            out[:, :, i] = g.swapaxes(1, 2)


class RingAttention(Ring, Attention):
    """Of q (B, H, L, E), k and v (B, G, S, E), H a multiple of G. Saves what Attention does."""

    op = "ring_attention"

    def forward(self, q, k, v, is_causal, scale, whole):
        shapes, t, self.whole = [a.shape for a in (q, k, v)], whole["t"], whole
        if any(len(s) != 4 for s in shapes) or shapes[1] != shapes[2] or (
                q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1] or q.shape[3] != k.shape[3]):
            raise ValueError(f"rank {t.rank}: wanted query (B, H, L, E), key and value (B, G, S, E)"
                             f" with H a multiple of G; got {', '.join(map(str, shapes))}")
        self._options(q, k, is_causal, 0.0, scale, None)
        q, self.lead, self.ours = fused.readable(q), q.shape[:2], fused.fits(q, k, v)
        o, lse = self._attend(q, k, v, None)
        self.save(q, k, v, o, lse)
        return o

    def backward(self, go):
        return self._attend_backward(go, *self.saved, None)[:3]


class RingSelfAttention(Ring, SelfAttention):
    """Of a projection (B, L, 3 C), this rank's part of the text."""

    op = "ring_self_attention"


class UlyssesAttention(OfWhole, Attention):
    """Of all tokens and some of the heads."""

    op = "ulysses_attention"


class UlyssesSelfAttention(OfWhole, SelfAttention):
    op = "ulysses_self_attention"


def ring_attention(query, key, value, t, is_causal=False, scale=None, order="zigzag", *,
                   attn_mask=None, dropout_p=0.0, length=None, generator=None):
    """scaled_dot_product_attention over the keys of all ranks of t: (B, H, L, E), (B, G, S, E) and
    again, each rank's part of the text -> (B, H, L, E). Head i of the queries has key head
    i // (H / G). order: how the text is cut.

    attn_mask   of the whole text, without a gradient: an array, bool or floating, that broadcasts
                to (B, H, queries, keys) in the text's order; or a function of the places of some
                queries and of some keys, two arrays, that returns its part of them
    length      of the whole text; None: all ranks have as many tokens
    generator   of dropout, in the same state on all ranks"""
    whole = dict(t=t, order=order, length=length, mask=as_mask(t, attn_mask), dropout_p=dropout_p,
                 generator=generator)
    return RingAttention.apply(query, key, value, is_causal=is_causal, scale=scale, whole=whole)


def ring_self_attention(qkv, n_heads, is_causal=False, dropout_p=0.0, *, t, order="zigzag",
                        attn_mask=None, length=None, generator=None):
    """self_attention over the text of all ranks, of which qkv (B, L, 3 C) is this rank's part."""
    whole = dict(t=t, order=order, length=length, mask=as_mask(t, attn_mask), dropout_p=dropout_p,
                 generator=generator)
    return RingSelfAttention.apply(qkv, None, n_heads=n_heads, is_causal=is_causal, whole=whole)


def ulysses_attention(query, key, value, t, is_causal=False, scale=None, *, attn_mask=None,
                      dropout_p=0.0, length=None, generator=None):
    """As ring_attention, the text cut in order; H a multiple of n, and G of n, or n of G. A mask is
    made whole, queries x keys, as on one rank."""
    n, n_heads, n_groups = t.size, query.shape[1], key.shape[1]
    attn_mask = as_mask(t, attn_mask)
    check_heads(t, n_heads)
    if n % n_groups and n_groups % n:
        raise ValueError(f"rank {t.rank}: Ulysses wants the {n_groups} heads of keys to be a "
                         f"multiple of the {n} ranks, or {n} a multiple of {n_groups}")
    if n_groups < n:
        key, value = (a.repeat_interleave(n // n_groups, 1) for a in (key, value))
    if length is not None:
        check_part(t, length, key.shape[2], "contiguous")
    q, k, v = (functions.all_to_all(t, a, 1, 2, length) for a in (query, key, value))
    if (n_shared := q.shape[1] // k.shape[1]) > 1:
        k, v = (a.repeat_interleave(n_shared, 1) for a in (k, v))
    mask, whole = _of_heads(t, n_heads, q._xp, (q.shape[2], k.shape[2]), attn_mask, dropout_p,
                            generator)
    y = UlyssesAttention.apply(q, k, v, mask, is_causal=is_causal, scale=scale, whole=whole)
    return functions.all_to_all(t, y, 2, 1, length and n_heads)


def ulysses_self_attention(qkv, n_heads, is_causal=False, dropout_p=0.0, *, t, attn_mask=None,
                           length=None, generator=None):
    """As ring_self_attention, the text cut in order, n_heads a multiple of n."""
    attn_mask = as_mask(t, attn_mask)
    check_heads(t, n_heads)
    n_batch, n_here, width = qkv.shape
    if length is not None:
        check_part(t, length, n_here, "contiguous")
    x = qkv.reshape(n_batch, n_here, 3, n_heads, width // 3 // n_heads)
    x = functions.all_to_all(t, x, 3, 1, length)  # (B, n L, 3, H / n, E)
    x = x.reshape(n_batch, x.shape[1], width // t.size)
    mask, whole = _of_heads(t, n_heads, x._xp, x.shape[1:2] * 2, attn_mask, dropout_p, generator)
    y = UlyssesSelfAttention.apply(x, mask, n_heads=n_heads // t.size, is_causal=is_causal,
                                   whole=whole)
    return functions.all_to_all(t, y, 1, 2, length and width // 3)


def _of_heads(t, n_heads, xp, tokens, mask, dropout_p, generator):
    """This rank's heads of a mask, or None, and what OfWhole wants to know."""
    first, end = (n_heads // t.size * r for r in (t.rank, t.rank + 1))
    if mask is not None:
        mask = mask_at(mask, *map(xp.arange, tokens))
        if mask.ndim > 2 and mask.shape[-3] > 1:
            mask = mask[..., first:end, :, :]
    return mask, dict(t=t, heads=(first, n_heads), tokens=tokens, mask=None, dropout_p=dropout_p,
                      generator=generator)


def as_mask(t, mask):
    """An array, a function or None."""
    if getattr(mask, "requires_grad", False):
        raise ValueError(f"rank {t.rank}: attention over a text in parts gives its mask no gradient"
                         "; got one that wants it. mask.detach() says that it is a constant")
    return getattr(mask, "_data", mask)


class PartDropout(drop.Dropout):
    """Dropout of this rank's tokens, dimension 1 of x (B, L, ...), by their places in the whole."""

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
    """functional.dropout of this rank's part of x: what one rank drops of the whole."""
    return PartDropout.apply(x, p=p, generator=generator, **part) if training and p else x


def check_part(t, length, n_here, order):
    """How many tokens of a text of this length each rank has; ValueError if it is not n_here."""
    chunks_of(t.rank, t.size, order)  # an order that is none is an error of this rank
    n_each = lengths(length, t.size, order)
    if n_each[t.rank] != n_here:
        raise ValueError(f"rank {t.rank}: wanted {n_each[t.rank]} tokens here, of a text of "
                         f"{length} in {order} order on {t.size} ranks; got {n_here}")
    return n_each


def check_heads(t, n_heads):
    if n_heads % t.size:
        raise ValueError(f"rank {t.rank}: Ulysses gives every rank as many heads: {n_heads} heads "
                         f"are no multiple of {t.size} ranks. The ring takes any number")


def context_parallel(model, t, method="ring", order=None, length=None):
    """Split the text that `model` (nn.GPT, or what has CausalSelfAttention in it) reads over t:
    returns part(x), this rank's part of a batch of ids, labels or positions (B, T).

        part = context_parallel(model, t)                   # method: "ring" or "ulysses"
        loss = F.cross_entropy(model(part(x)).reshape(-1, V), part(y).reshape(-1), reduction="sum")
        (loss * (t.size / n_tokens)).backward()             # n_tokens: that count, on all ranks
        average_gradients(t, model.parameters())            # or DataParallel(model, t)

    Parts are of one sum, as a rank's gradient has what other ranks' losses gave its keys: gradients
    are to be summed, of losses divided by the tokens of all ranks (a mean of means is another loss
    where ranks count unequal numbers of them). A GPT gets the positions of its part; those of rows
    of several texts, model(part(x), part(positions)), travel as a byte a token. Dropout is the
    whole text's while the ranks' generators are in the same state.
    order: "zigzag" unless given for the ring; Ulysses has "contiguous" alone. length: T, where the
    ranks do not divide it (zigzag: twice their number). t None: undo it."""
    attentions = [m for m in model.modules() if isinstance(m, CausalSelfAttention)]
    gpts = [m for m in model.modules() if isinstance(m, GPT)]
    drops = [m for m in model.modules() if type(m) is Dropout]
    if t is None:
        for module in (*attentions, *gpts, *drops):
            for name in ("attend", "joins_ranks", "positions", "one_text", "drop"):
                vars(module).pop(name, None)
        return lambda x: x
    if not attentions or any(isinstance(m, MultiheadAttention) for m in model.modules()):
        raise TypeError(f"rank {t.rank}: context_parallel wants all attention of the model to be "
                        "nn.CausalSelfAttention; another would see this rank's tokens alone")
    in_ring = order or "zigzag"
    ways = {"ring": (in_ring, {"order": in_ring}), "ulysses": ("contiguous", {})}
    if method not in ways or method == "ulysses" and order == "zigzag":
        raise ValueError(f"rank {t.rank}: method is 'ring', or 'ulysses' with contiguous order; "
                         f"got {method!r}, order {order!r}")
    order, options = ways[method]
    attend = ring_self_attention if method == "ring" else ulysses_self_attention
    for module in attentions:
        module.attend = partial(attend, t=t, length=length, **options)
        module.joins_ranks = True
    for gpt in gpts:
        gpt.positions = partial(_positions, t, order, length, gpt.context)
        gpt.one_text = partial(_one_text, t, order, length)
    for module in drops:
        module.drop = partial(dropout, t=t, order=order, length=length)
    return partial(_part, t, order, length)


def _part(t, order, length, x):
    n_pieces = chunks_of(t.rank, t.size, order)[0]
    if length is None and x.shape[1] % n_pieces or length not in (None, x.shape[1]):
        raise ValueError(f"rank {t.rank}: wanted texts of {length or f'a multiple of {n_pieces}'} "
                         f"tokens, for {t.size} ranks in {order} order; got {x.shape[1]}. Call "
                         f"context_parallel with length={x.shape[1]}")
    return split(x, t, order)


def _positions(t, order, length, context, xp, n_tokens):
    """Of the n_tokens that this rank has, what GPT.positions is to give."""
    length = n_tokens * t.size if length is None else length
    if length > context:
        raise ValueError(f"rank {t.rank}: the model has a context of {context} tokens, got "
                         f"{length} on {t.size} ranks")
    return positions(length, t.size, t.rank, order, xp)


def _one_text(t, order, length, places):
    """GPT.one_text of the whole rows, of which `places` (B, L) are this rank's part: a function of
    places, as ring_attention takes it. Sends a byte a token, (n-1)/n of them."""
    xp, n = backend.xp_of([places]), t.size
    length = n * places.shape[1] if length is None else length
    check_part(t, length, places.shape[1], order)
    begins, bounds = ring_blocks.all_gather_v(t, (places == 0).reshape(-1))
    whole = xp.empty((len(places), length), bool)
    for r in range(n):
        own = begins[bounds[r]:bounds[r + 1]].reshape(len(places), -1)
        whole[:, positions(length, n, r, order, xp)] = own
    text = whole.cumsum(axis=1)
    return lambda queries, keys: text[:, None, queries, None] == text[:, None, None, keys]


# ---- bytes ----


def bytes_sent(method, n, n_batch, length, width, n_heads, n_groups=None, itemsize=4, sumsize=4,
               rank=0, order="zigzag"):
    """(forward, backward) bytes that a rank of n sends for a text of `length` tokens, heads of
    `width`; itemsize of the arrays, sumsize of the sums (float64: 8). rank, order: of a length that
    the ranks do not divide."""
    n_groups = n_groups or n_heads
    n_each, c = lengths(length, n, order if method == "ring" else "contiguous"), n_batch * width
    if method == "ring":  # all blocks but the right neighbour's, all sums but its own
        block = 2 * n_groups * c * (length - n_each[(rank + 1) % n]) * itemsize
        return block, block + 2 * n_groups * c * (length - n_each[rank]) * sumsize
    own, others = n_each[rank], length - n_each[rank]  # of all heads, and of this rank's
    inputs, heads = n_heads + 2 * max(n_groups, n), n_heads // n
    there = inputs * (n - 1) // n * own + heads * others
    back = inputs // n * others + (n - 1) * heads * own
    return there * c * itemsize, back * c * itemsize
