"""Context parallelism: a text is too long for one rank, so each of n ranks has s/n of its s tokens.

All layers except attention work on each token separately. In attention every query needs all keys.
There are two methods. Both methods take any mask, any length and dropout (text_parts.py):

    ring        K and V go around the ring. Each rank merges the results of the blocks for its
                queries. The result is the same as on one rank up to rounding (ring_attention.py)
    Ulysses     each rank has s/n tokens of all heads. After an all-to-all it has all tokens of h/n
                heads, and computes attention. A second all-to-all returns the results. The bits
                are the same as on one rank (ulysses.py)

The table gives the number of elements that each rank sends, for b texts with h query heads and g
key heads. e is the width of a head, and c = b e s/n:

    ring        2 g c (n-1) in forward, in n-1 messages. Backward sends K and V again, and also the
                same number of elements for the gradients of K and V, in the dtype in which these
                gradients are summed
    Ulysses     (2 h + 2 g) c (n-1)/n in forward, and the same in backward. If n > g, put n in place
                of g, because key heads are repeated

So in forward the ring sends n g / (h + g) times as much as Ulysses. If g = h, the two methods send
the same number of elements on 2 ranks. On more ranks Ulysses sends less. For Ulysses h must be a
multiple of n.

Sources: Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889); Jacobs et al. 2023 (arXiv 2309.14509).
Test: tests/parallel/model/test_context.py   Tutorial: tutorials/22_long_context.py
"""

from functools import partial

from minidl import backend
from minidl.comm import ring_blocks
from minidl.nn.layers import Dropout
from minidl.nn.models import GPT
from minidl.nn.transformer import CausalSelfAttention, MultiheadAttention
from minidl.parallel.model.ring_attention import (  # noqa: F401: users write context.NAME
    merge, pass_around, pass_around_and_sum, ring_attention, ring_self_attention,
)
from minidl.parallel.model.tensor import SequenceDropout
from minidl.parallel.model.text_parts import (  # noqa: F401
    check_part, chunks_of, dropout, lengths, pairs, pieces, positions, seen, split,
)
from minidl.parallel.model.ulysses import ulysses_attention, ulysses_self_attention  # noqa: F401


def context_parallel(model, t, method="ring", order=None, length=None):
    """Changes `model` so that each rank of t reads its part of a text. Returns a function `part`.
    part(x) is this rank's part of x, a batch of ids, labels or positions (B, T).

    model: nn.GPT, or a module whose attention layers are all CausalSelfAttention.

        part = context_parallel(model, t)                   # method: "ring" or "ulysses"
        loss = F.cross_entropy(model(part(x)).reshape(-1, V), part(y).reshape(-1), reduction="sum")
        (loss * (t.size / n_tokens)).backward()             # n_tokens: tokens of all ranks
        average_gradients(t, model.parameters())            # or DataParallel(model, t)

    The losses of all ranks are parts of one sum, because the keys of a rank get gradients from the
    losses of other ranks. So divide each loss by the number of tokens of all ranks, and sum the
    gradients. (If ranks have different numbers of tokens, the mean of the ranks' mean losses is a
    different loss.)

    A GPT uses the positions of this rank's part. If a row holds several texts, call
    model(part(x), part(positions)). This sends one byte for each token. Dropout is the same as for
    the whole text if all ranks' generators have the same state.

    order: for the ring "zigzag" (the default) or "contiguous"; for Ulysses only "contiguous".
    length: T. Pass it if T is not a multiple of the number of ranks (for zigzag: of twice this
    number). t: with None the call undoes an earlier call. Raises TypeError or ValueError for a
    model or a method that does not fit."""
    attentions = [m for m in model.modules() if isinstance(m, CausalSelfAttention)]
    gpts = [m for m in model.modules() if isinstance(m, GPT)]
    drops = [m for m in model.modules() if isinstance(m, Dropout)]
    if t is None:
        for module in (*attentions, *gpts, *drops):
            for name in ("attend", "joins_ranks", "positions", "one_text", "drop"):
                vars(module).pop(name, None)
        return lambda x: x
    if not attentions or any(isinstance(m, MultiheadAttention) for m in model.modules()):
        raise TypeError(f"rank {t.rank}: context_parallel wants a model whose attention layers are "
                        "all nn.CausalSelfAttention; got a model without attention layers, or "
                        "with an nn.MultiheadAttention, which would see only this rank's tokens")
    in_ring = order or "zigzag"
    ways = {"ring": (in_ring, {"order": in_ring}), "ulysses": ("contiguous", {})}
    if method not in ways or method == "ulysses" and order == "zigzag":
        raise ValueError(f"rank {t.rank}: context_parallel wants method='ring', or "
                         "method='ulysses' with order='contiguous' or order=None; got "
                         f"method={method!r}, order={order!r}")
    order, options = ways[method]
    attend = ring_self_attention if method == "ring" else ulysses_self_attention
    for module in attentions:
        module.attend = partial(attend, t=t, length=length, **options)
        module.joins_ranks = True
    for gpt in gpts:
        gpt.positions = partial(_positions, t, order, length, gpt.context)
        gpt.one_text = partial(_one_text, t, order, length)
    for module in drops:  # sequence parallelism cuts this rank's part again, into `blocks` parts
        blocks = module.t.size if isinstance(module, SequenceDropout) else 1
        module.drop = partial(dropout, t=t, order=order, length=length and length // blocks)
    return partial(_part, t, order, length)


def _part(t, order, length, x):
    n_pieces = chunks_of(t.rank, t.size, order)[0]
    if length is None and x.shape[1] % n_pieces or length not in (None, x.shape[1]):
        raise ValueError(f"rank {t.rank}: for {t.size} ranks in {order} order, wanted texts whose "
                         f"number of tokens is {length or f'divisible by {n_pieces}'}; got "
                         f"{x.shape[1]} tokens. Call context_parallel with length={x.shape[1]}")
    return split(x, t, order)


def _positions(t, order, length, context, xp, n_tokens):
    """The model calls this function in place of GPT.positions. Returns the positions of this rank's
    n_tokens tokens."""
    length = n_tokens * t.size if length is None else length
    if length > context:
        raise ValueError(f"rank {t.rank}: wanted texts of at most {context} tokens, the context of "
                         f"the model; got {length} tokens on {t.size} ranks together")
    return positions(length, t.size, t.rank, order, xp)


def _one_text(t, order, length, places):
    """The model calls this function in place of GPT.one_text. It works for rows that are divided
    over the ranks.

    places (B, L): the positions of this rank's part. Returns a function (queries, keys) -> mask,
    which can be the attn_mask of ring_attention. Each rank sends (n-1)/n bytes for each token of
    the whole text. Collective."""
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


def bytes_sent(method, n, n_batch, length, width, n_heads, n_groups=None, itemsize=4, sumsize=4,
               rank=0, order="zigzag"):
    """Returns (forward, backward): the bytes that `rank` of n ranks sends for n_batch texts of
    `length` tokens, with heads of `width` elements.

    itemsize: the bytes of an element of the arrays. sumsize: the bytes of an element of the summed
    gradients of K and V (8 for float64). rank and order matter only if n does not divide the
    length."""
    n_groups = n_groups or n_heads
    n_each, c = lengths(length, n, order if method == "ring" else "contiguous"), n_batch * width
    if method == "ring":  # the messages of pass_around and pass_around_and_sum
        block = 2 * n_groups * c * (length - n_each[(rank + 1) % n]) * itemsize
        return block, block + 2 * n_groups * c * (length - n_each[rank]) * sumsize
    own, others = n_each[rank], length - n_each[rank]  # tokens of this rank, tokens of the others
    inputs, heads = n_heads + 2 * max(n_groups, n), n_heads // n
    there = inputs * (n - 1) // n * own + heads * others
    back = inputs // n * others + (n - 1) * heads * own
    return there * c * itemsize, back * c * itemsize
