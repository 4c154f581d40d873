"""Context parallelism: a text longer than a rank holds. Each rank has s/n of its tokens.

All layers but attention look at a token alone. In attention every query wants all keys. Two ways,
with any mask, any length and dropout (text_parts.py):

    ring        K and V go around the ring, and each rank merges what the blocks give its queries:
                one rank's result but for roundings, to the bit on one rank (ring_attention.py)
    Ulysses     all-to-all: from s/n tokens of all heads to all tokens of h/n heads, and back: one
                rank's result to the bit (ulysses.py)

Elements sent per rank, of b texts, width e of a head, h query and g key heads, c = b s/n e:

    ring        2 g c (n-1), in n-1 messages; backward the same, and as much of gk and gv, in the
                dtype of sums
    Ulysses     (2 h + 2 g) c (n-1)/n each way; g is n where n > g: key heads are sent twice

So ring : Ulysses = n g / (h + g) forward. With as many key heads as query heads they are equal at
n = 2, and Ulysses, which wants h to be a multiple of n, sends less on more ranks.

Sources: Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889); Jacobs et al. 2023 (arXiv 2309.14509).
Test: tests/parallel/model/test_context.py   Tutorial: tutorials/22_long_context.py
"""

from functools import partial

from minidl import backend
from minidl.comm import ring_blocks
from minidl.nn.layers import Dropout
from minidl.nn.models import GPT
from minidl.nn.transformer import CausalSelfAttention, MultiheadAttention
from minidl.parallel.model.ring_attention import (  # noqa: F401: these are typed context.NAME
    merge, pass_around, pass_around_and_sum, ring_attention, ring_self_attention,
)
from minidl.parallel.model.tensor import SequenceDropout
from minidl.parallel.model.text_parts import (  # noqa: F401
    check_part, chunks_of, dropout, lengths, pairs, pieces, positions, seen, split,
)
from minidl.parallel.model.ulysses import ulysses_attention, ulysses_self_attention  # noqa: F401


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
    drops = [m for m in model.modules() if isinstance(m, Dropout)]
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
    for module in drops:  # of a part, sequence parallelism leaves this rank one of `blocks`
        blocks = module.t.size if isinstance(module, SequenceDropout) else 1
        module.drop = partial(dropout, t=t, order=order, length=length and length // blocks)
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
