"""Ring attention: K and V are sent around the ring of ranks, and queries stay on their rank.

The plain form, with the formulas of the online softmax: minidl/plain/ring_attention.py. Here the
next block travels while a rank computes with the block that it has. A kernel computes the attention
of a block, if possible. Any mask and dropout may be used, and query heads may share keys. The
zigzag order gives all ranks equal work (text_parts.py).

In backward gk and gv, the gradients of a block's K and V, follow one step behind the block. The
owner of a block adds its own part of these gradients at the end. So the other parts need n-1 hops
to reach the owner. (In minidl/plain/ring_attention.py they need n hops.) The result equals
attention on one rank up to rounding, because the sums are computed in another order. With dropout
each block draws the random numbers of complete rows, for all keys. So n blocks draw n times as many
numbers as one rank.

Source: Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889). For the bytes and another method see
context.py
Test: tests/parallel/model/test_context.py   Tutorial: tutorials/22_long_context.py
"""

import math

from minidl import backend
from minidl.comm.collective import collective
from minidl.ops import attention_kernel
from minidl.ops.attention import Attention, SelfAttention
from minidl.parallel.model.text_parts import OfWhole, as_mask, check_part, mask_at, positions, seen


@collective(own_args=("visit",), own_rows=("block",))
def pass_around(t, block, visit, rows=None):
    """Calls visit(owner, the owner's block) for every rank's block. The first block is this rank's
    own, the second is the left neighbour's, and so on. The next block travels while `visit`
    computes.

    rows: the lengths of the ranks' blocks along the first axis, if they differ. Each rank sends all
    blocks except the right neighbour's, in n-1 messages. Collective."""
    for step in range(t.size):
        coming = _next(t, block, rows, step) if step < t.size - 1 else None
        visit((t.rank - step) % t.size, block)
        block = coming() if coming else None


@collective(own_args=("visit",), own_rows=("block",))
def pass_around_and_sum(t, block, visit, rows=None):
    """Like pass_around, but visit() returns a new array: this rank's part of a sum for the owner of
    the block. Returns the sum of all ranks' parts for this rank's own block.

    Each sum follows its block, one step behind. In addition to the blocks, each rank sends all sums
    except its own, in n-1 messages."""
    left, right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
    own = sending = None
    for step in range(t.size):
        if step > 1:  # the left rank sends a sum first, and then the next block
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
    """Starts to send the block to the right, and to receive the next block from the left. Returns a
    function f(). f() waits until both messages are done, and returns the next block."""
    left, right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
    n_rows = len(block) if rows is None else rows[(left - step) % t.size]
    coming = backend.xp_of([block]).empty((n_rows, *block.shape[1:]), block.dtype)
    requests = t.irecv(coming, left), t.isend(block, right)

    def wait():
        for request in requests:
            request.wait()
        return coming

    return wait


def merge(xp, o, lse, o2, lse2):
    """Merges two partial results (o, lse) and (o2, lse2) into o and lse, in place. Both results are
    for the same queries, but over different keys. o is (..., L, E), lse is (..., L). lse is -inf
    for a query that saw no key."""
    both = xp.logaddexp(lse, lse2)
    finite = xp.maximum(both, xp.finfo(both.dtype).min)  # avoids -inf minus -inf, which is nan
    o *= xp.exp(lse - finite)[..., None]
    o += xp.exp(lse2 - finite)[..., None] * o2
    lse[...] = both


class Ring(OfWhole):
    """Attention in which a rank gets the keys block by block. The class for one rank (Attention or
    SelfAttention) computes the result of a block and its log-sum-exp, by the kernel if possible.
    Sums over blocks are float32 (float64 for float64 inputs)."""

    def _begin(self, q, k, t, order, length, **options):
        n_tokens, self.order, self.causal = [a.shape[2] for a in (q, k)], order, self.is_causal
        if self.causal and n_tokens[0] != n_tokens[1]:
            raise ValueError(f"rank {t.rank}: causal ring attention wants equal numbers of "
                             f"queries and keys; got {n_tokens[0]} queries and {n_tokens[1]} keys "
                             "on this rank")
        whole = [t.size * m if length is None else length for m in n_tokens]
        n_each = [check_part(t, *pair, order) for pair in zip(whole, n_tokens)][1]
        self.sizes = [2 * len(k) * k.shape[1] * k.shape[3] * m for m in n_each]
        super()._begin(q, k, t, (0, q.shape[1]), whole, **options)

    def _part(self, owner, q, kv):
        """Returns (indices of the queries, indices of the keys, (q, k, v, mask)) for the part of a
        block that this rank's queries see. k and v are repeated for each query head. Returns None
        if this rank sees nothing of the block."""
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
        """Returns a bool array that broadcasts to (B, H, L): True for queries that see no key of
        the block."""
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
            # If this rank has keys, its own block comes first, and every query sees a key of this
            # block.
            if not results:
                results[:] = o.astype(self.dtype, copy=False), lse
            else:
                merge(xp, results[0][:, :, rows], results[1][:, :, rows], o, lse)

        pass_around(self.t, xp.stack((k, v)).reshape(-1), visit, self.sizes)
        o, lse = results or (xp.zeros(q.shape, self.dtype), xp.zeros(q.shape[:3], self.dtype))
        lse[lse == -math.inf] = 0  # for a query that sees no key, lse is 0, as on one rank
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
    """Ring attention of q (B, H, L, E), k and v (B, G, S, E), with H a multiple of G. Saves the
    same arrays as Attention."""

    op = "ring_attention"

    def forward(self, q, k, v, is_causal, scale, whole):
        shapes, t, self.whole = [a.shape for a in (q, k, v)], whole["t"], whole
        if any(len(s) != 4 for s in shapes) or shapes[1] != shapes[2] or (
                q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1] or q.shape[3] != k.shape[3]):
            raise ValueError(f"rank {t.rank}: wanted query (B, H, L, E), key and value (B, G, S, E)"
                             f", where H is a multiple of G; got {', '.join(map(str, shapes))}")
        self._options(q, k, is_causal, 0.0, scale, None)
        q, self.lead = attention_kernel.readable(q), q.shape[:2]
        self.ours = attention_kernel.fits(q, k, v)
        o, lse = self._attend(q, k, v, None)
        self.save(q, k, v, o, lse)
        return o

    def backward(self, go):
        return self._attend_backward(go, *self.saved, None)[:3]


class RingSelfAttention(Ring, SelfAttention):
    """Ring attention of a projection (B, L, 3 C). The projection holds q, k and v of this rank's
    part of the text."""

    op = "ring_self_attention"


def ring_attention(query, key, value, t, is_causal=False, scale=None, order="zigzag", *,
                   attn_mask=None, dropout_p=0.0, length=None, generator=None):
    """Returns (B, H, L, E): scaled_dot_product_attention over the keys of all ranks of t.

    query is (B, H, L, E), key and value are (B, G, S, E): this rank's part of the text. Query head
    i uses key head i // (H / G).

    order       how the text is cut: "zigzag" or "contiguous"
    attn_mask   the mask of the whole text: a bool or floating array that broadcasts to
                (B, H, queries, keys), in the order of the text. It must not require a gradient.
                attn_mask can also be a function of two arrays: the positions of some queries and
                the positions of some keys. The function returns the mask for these queries and keys
    length      the number of tokens of the whole text. None means that all ranks have the same
                number of tokens
    generator   the generator for dropout. It must be in the same state on all ranks. None means the
                default generator

    Raises ValueError for shapes that do not fit. Collective."""
    whole = dict(t=t, order=order, length=length, mask=as_mask(t, attn_mask), dropout_p=dropout_p,
                 generator=generator)
    return RingAttention.apply(query, key, value, is_causal=is_causal, scale=scale, whole=whole)


def ring_self_attention(qkv, n_heads, is_causal=False, dropout_p=0.0, *, t, order="zigzag",
                        attn_mask=None, length=None, generator=None):
    """Returns (B, L, C): self_attention over the text of all ranks. qkv (B, L, 3 C) is this rank's
    part. Other arguments: as in ring_attention. Collective."""
    whole = dict(t=t, order=order, length=length, mask=as_mask(t, attn_mask), dropout_p=dropout_p,
                 generator=generator)
    return RingSelfAttention.apply(qkv, None, n_heads=n_heads, is_causal=is_causal, whole=whole)
