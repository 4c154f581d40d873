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
the bit; both to the bit on one rank. Dropout of probabilities is refused: its draws go by place.

Sources: Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889); Jacobs et al. 2023 (arXiv 2309.14509).
Test: tests/parallel/model/test_context.py   Tutorial: tutorials/22_long_context.py
"""

from functools import partial

from minidl import backend
from minidl.comm.collective import collective
from minidl.fused import attention as fused
from minidl.nn.models import GPT
from minidl.nn.transformer import CausalSelfAttention, MultiheadAttention
from minidl.ops.attention import (
    Attention, SelfAttention, scaled_dot_product_attention, self_attention,
)
from minidl.parallel.model import functions

# ---- who has which tokens, and who sees whom ----


def chunks_of(rank, n, order):
    """(pieces of the text, those that `rank` has of them)."""
    if order == "zigzag":
        return 2 * n, (rank, 2 * n - 1 - rank)
    if order == "contiguous":
        return n, (rank,)
    raise ValueError(f"rank {rank}: order is 'zigzag' or 'contiguous', got {order!r}")


def positions(length, n, rank, order="zigzag", xp=None):
    """The places in a text of `length` tokens of those that `rank` of n has, in its order."""
    xp = xp or backend.xp_of([])
    n_pieces, mine = chunks_of(rank, n, order)
    if length % n_pieces:
        raise ValueError(f"rank {rank}: wanted a text whose length is a multiple of {n_pieces}, "
                         f"for {n} ranks in {order} order; got {length} tokens. Pad it to "
                         f"{length + -length % n_pieces}, and leave the padding out of the loss")
    size = length // n_pieces
    return xp.concatenate([xp.arange(i * size, (i + 1) * size) for i in mine])


def split(x, t, order="zigzag", dim=1):
    """This rank's part of x, an array or a Tensor, along its dimension `dim` of tokens. Labels are
    shifted before they are split: the successor of a rank's last token is another's."""
    xp = backend.xp_of([getattr(x, "_data", x)])
    at = positions(x.shape[dim], t.size, t.rank, order, xp)
    return x[(slice(None),) * dim + (at,)]


def seen(rank, owner, n_tokens, is_causal, order):
    """Which of its queries `rank` computes against which of the n_tokens keys of `owner`: (queries,
    keys, whether with the causal triangle); None: there is nothing to see."""
    everything, half = slice(None), n_tokens // 2
    if not is_causal or owner == rank:
        return everything, everything, is_causal
    if order == "contiguous":
        return (everything, everything, False) if owner < rank else None
    if owner < rank:
        return everything, slice(half), False
    return slice(half, None), everything, False


def pairs(length, n, rank, order="zigzag"):
    """Pairs of a query and a key that `rank` computes in each of the n steps, causal."""
    m, steps = length // n, []
    for s in range(n):
        part = seen(rank, (rank - s) % n, m, True, order)
        rows, keys = (len(range(m)[p]) for p in part[:2]) if part else (0, 0)
        steps.append(m * (m + 1) // 2 if part and part[2] else rows * keys)
    return steps


# ---- around the ring ----


@collective(own_args=("visit",))
def pass_around(t, block, visit):
    """visit(owner, its block) for every rank's block, this rank's own first, then its left
    neighbour's. The next one is on its way while `visit` computes. Sends (n-1) block.nbytes in
    n-1 messages."""
    for step in range(t.size):
        coming = _next(t, block) if step < t.size - 1 else None
        visit((t.rank - step) % t.size, block)
        block = coming and coming()


@collective(own_args=("visit",))
def pass_around_and_sum(t, block, visit):
    """As pass_around; `visit` returns a new array, this rank's part of a sum that the owner of the
    block is to have. Returns this rank's own sum. Every sum follows its block, one step behind:
    (n-1) (block.nbytes + sum.nbytes) in 2 (n-1) messages."""
    left, right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
    own = sending = None
    for step in range(t.size):
        if step > 1:  # before the next block: it is sent before that one
            total = backend.xp_of([own]).empty_like(own)
            arriving = t.irecv(total, left)
        coming = _next(t, block) if step < t.size - 1 else None
        part = visit((t.rank - step) % t.size, block)
        block = coming and coming()
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


def _next(t, block):
    """Send the block on, begin to receive the next: a function that waits for it."""
    coming = backend.xp_of([block]).empty_like(block)
    requests = (t.irecv(coming, (t.rank - 1) % t.size), t.isend(block, (t.rank + 1) % t.size))

    def wait():
        for request in requests:
            request.wait()
        return coming

    return wait


# ---- attention ----


def merge(xp, o, lse, o2, lse2):
    """Two partial results of the same queries as one, in place of the first: o (..., L, E) and lse
    (..., L), each over other keys. Each lse is finite: every query of a part saw a key."""
    both = xp.logaddexp(lse, lse2)
    o *= xp.exp(lse - both)[..., None]
    o += xp.exp(lse2 - both)[..., None] * o2
    lse[...] = both


class Ring:
    """Attention whose keys come block by block: a block's part is the one-rank class's own, by the
    kernel where that fits, with its log-sum-exp; sums over blocks are float32 (float64)."""

    def _ring(self, t, order, is_causal, n_queries, n_keys):
        self.t, self.order, self.causal = t, order, is_causal
        n_pieces, mine = chunks_of(t.rank, t.size, order)
        if is_causal and (n_queries != n_keys or n_keys % len(mine)):
            raise ValueError(f"rank {t.rank}: causal ring attention in {order} order wants as many "
                             f"queries as keys, a multiple of {len(mine)}; got {n_queries} and "
                             f"{n_keys} here. Pad the text to a multiple of {n_pieces}")

    def _part(self, owner, q, kv):
        """(queries, keys, k, v) of what is seen of a block, k and v once for each query head."""
        part = seen(self.t.rank, owner, kv.shape[3], self.causal, self.order)
        if part is None:
            return None
        rows, keys, self.is_causal = part
        k, v = kv[:, :, :, keys]
        if (n_groups := q.shape[1] // k.shape[1]) > 1:
            k, v = (self.xp.repeat(a, n_groups, axis=1) for a in (k, v))
        self.n_keys = k.shape[2]
        return rows, keys, k, v

    def _attend(self, q, k, v, mask):
        attend, xp, results = super()._attend, self.xp, []

        def visit(owner, kv):
            if (part := self._part(owner, q, kv)) is None:
                return
            rows, _, k, v = part
            o, lse = attend(q[:, :, rows], k, v, None)
            if not results:  # this rank's own block, and every query sees some key of it
                results[:] = o.astype(self.dtype, copy=False), lse
            else:
                merge(xp, results[0][:, :, rows], results[1][:, :, rows], o, lse)

        pass_around(self.t, xp.stack((k, v)), visit)
        return results[0].astype(q.dtype, copy=False), results[1]

    def _attend_backward(self, go, q, k, v, o, lse, mask, out=None):
        backward, xp = super()._attend_backward, self.xp
        gq = xp.zeros(q.shape, self.dtype)

        def visit(owner, kv):
            gkv = xp.zeros(kv.shape, self.dtype)
            if (part := self._part(owner, q, kv)) is not None:
                rows, keys, k, v = part
                gq_part, *parts, _ = backward(
                    *(a[:, :, rows] for a in (go, q)), k, v, o[:, :, rows],
                    xp.ascontiguousarray(lse[:, :, rows]), None)
                gq[:, :, rows] += gq_part
                for g, g_part in zip(gkv, parts):
                    heads = g.shape[0], g.shape[1], -1, *g_part.shape[2:]
                    g[:, :, keys] = g_part.reshape(heads).sum(axis=2, dtype=self.dtype)
            return gkv

        grads = gq, *pass_around_and_sum(self.t, xp.stack((k, v)), visit)
        if out is None:
            return (*grads, None)
        for i, g in enumerate(grads):
            out[:, :, i] = g.swapaxes(1, 2)


class RingAttention(Ring, Attention):
    """Of q (B, H, L, E), k and v (B, G, S, E), H a multiple of G. Saves what Attention does."""

    op = "ring_attention"

    def forward(self, q, k, v, is_causal, scale, t, order):
        shapes = [a.shape for a in (q, k, v)]
        if any(len(s) != 4 for s in shapes) or shapes[1] != shapes[2] or (
                q.shape[0] != k.shape[0] or q.shape[1] % k.shape[1] or q.shape[3] != k.shape[3]):
            raise ValueError(f"rank {t.rank}: wanted query (B, H, L, E), key and value (B, G, S, E)"
                             f" with H a multiple of G; got {', '.join(map(str, shapes))}")
        self._ring(t, order, is_causal, q.shape[2], k.shape[2])
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

    def forward(self, qkv, mask, n_heads, is_causal, t, order):
        self._ring(t, order, is_causal, qkv.shape[1], qkv.shape[1])
        return super().forward(qkv, mask, n_heads, is_causal, 0.0, None)


def ring_attention(query, key, value, t, is_causal=False, scale=None, order="zigzag"):
    """scaled_dot_product_attention over the keys of all ranks of t: (B, H, L, E), (B, G, S, E) and
    again, each rank's part of the text -> (B, H, L, E); all ranks have parts of one length. Head i
    of the queries has key head i // (H / G). order: how the text is cut, where it is causal."""
    return RingAttention.apply(query, key, value, is_causal=is_causal, scale=scale, t=t,
                               order=order)


def ring_self_attention(qkv, n_heads, is_causal=False, dropout_p=0.0, *, t, order="zigzag"):
    """self_attention over the text of all ranks, of which qkv (B, L, 3 C) is this rank's part."""
    no_dropout(t, dropout_p)
    return RingSelfAttention.apply(qkv, None, n_heads=n_heads, is_causal=is_causal, t=t,
                                   order=order)


def ulysses_attention(query, key, value, t, is_causal=False, scale=None):
    """As ring_attention, the text cut in order; H a multiple of n, and G of n, or n of G."""
    n, n_heads, n_groups = t.size, query.shape[1], key.shape[1]
    check_heads(t, n_heads)
    if n % n_groups and n_groups % n:
        raise ValueError(f"rank {t.rank}: Ulysses wants the {n_groups} heads of keys to be a "
                         f"multiple of the {n} ranks, or {n} a multiple of {n_groups}")
    if n_groups < n:
        key, value = (a.repeat_interleave(n // n_groups, 1) for a in (key, value))
    q, k, v = (functions.all_to_all(t, a, 1, 2) for a in (query, key, value))
    if (n_shared := q.shape[1] // k.shape[1]) > 1:
        k, v = (a.repeat_interleave(n_shared, 1) for a in (k, v))
    y = scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
    return functions.all_to_all(t, y, 2, 1)


def ulysses_self_attention(qkv, n_heads, is_causal=False, dropout_p=0.0, *, t):
    """As ring_self_attention, the text cut in order, n_heads a multiple of n."""
    no_dropout(t, dropout_p)
    check_heads(t, n_heads)
    n_batch, length, width = qkv.shape
    x = qkv.reshape(n_batch, length, 3, n_heads, width // 3 // n_heads)
    x = functions.all_to_all(t, x, 3, 1)  # (B, n L, 3, H / n, E)
    x = x.reshape(n_batch, t.size * length, width // t.size)
    return functions.all_to_all(t, self_attention(x, n_heads // t.size, is_causal), 1, 2)


def no_dropout(t, p):
    if p:
        raise ValueError(f"rank {t.rank}: a text in parts wants attention without dropout of "
                         f"probabilities, whose draws go by the place in all of them; got {p}. Set "
                         "`dropout` of every CausalSelfAttention to 0")


def check_heads(t, n_heads):
    if n_heads % t.size:
        raise ValueError(f"rank {t.rank}: Ulysses gives every rank as many heads: {n_heads} heads "
                         f"are no multiple of {t.size} ranks. The ring takes any number")


def context_parallel(model, t, method="ring", order=None):
    """Split the text that `model` (nn.GPT, or what has CausalSelfAttention in it) reads over t:
    returns part(x), this rank's part of a batch of ids or labels (B, T).

        part = context_parallel(model, t)                   # method: "ring" or "ulysses"
        loss = F.cross_entropy(model(part(x)).reshape(-1, V), part(y).reshape(-1), reduction="sum")
        (loss * (t.size / n_tokens)).backward()             # n_tokens: that count, on all ranks
        average_gradients(t, model.parameters())            # or DataParallel(model, t)

    Parts are of one sum, as a rank's gradient has what other ranks' losses gave its keys: gradients
    are to be summed, of losses divided by the tokens of all ranks (a mean of means is another loss
    where ranks count unequal numbers of them). A GPT gets the positions of its part. Of dropout
    between layers: minidl.manual_seed(seed, stream=t.rank) once the weights are drawn.
    order: "zigzag" unless given for the ring; Ulysses has "contiguous" alone. t None: undo it."""
    attentions = [m for m in model.modules() if isinstance(m, CausalSelfAttention)]
    gpts = [m for m in model.modules() if isinstance(m, GPT)]
    if t is None:
        for module in (*attentions, *gpts):
            for name in ("attend", "joins_ranks", "positions"):
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
        module.attend, module.joins_ranks = partial(attend, t=t, **options), True
    for gpt in gpts:
        gpt.positions = partial(_positions, t, order, gpt.context)
    return partial(split, t=t, order=order)


def _positions(t, order, context, xp, n_tokens):
    """Of the n_tokens that this rank has, what GPT.positions is to give."""
    if n_tokens * t.size > context:
        raise ValueError(f"rank {t.rank}: the model has a context of {context} tokens, got "
                         f"{n_tokens} on each of {t.size} ranks")
    return positions(n_tokens * t.size, t.size, t.rank, order, xp)


# ---- bytes ----


def bytes_sent(method, n, n_batch, length, width, n_heads, n_groups=None, itemsize=4, sumsize=4):
    """(forward, backward) bytes that a rank of n sends for a text of `length` tokens, heads of
    `width`; itemsize of the arrays, sumsize of the sums (float64: 8)."""
    n_groups = n_groups or n_heads
    c = n_batch * length // n * width
    if method == "ring":
        block = 2 * n_groups * c * (n - 1)
        return block * itemsize, block * (itemsize + sumsize)
    each = (2 * n_heads + 2 * max(n_groups, n)) * c * (n - 1) // n * itemsize
    return each, each
