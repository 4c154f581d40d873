"""Ulysses: attention over a text that is divided over the ranks, by two all-to-alls.

The plain form: minidl/plain/ulysses.py. Here the all-to-alls are Functions with a backward
(functions.all_to_all). Query heads may share keys, the ranks' parts may be unequal, and any mask
and dropout may be used. The result has the same bits as attention on one rank.

Source: Jacobs et al. 2023 (arXiv 2309.14509). For the bytes and another method see context.py
Test: tests/parallel/model/test_context.py   Tutorial: tutorials/22_long_context.py
"""

from minidl.ops.attention import Attention, SelfAttention
from minidl.parallel.model import functions
from minidl.parallel.model.text_parts import OfWhole, as_mask, check_part, mask_at


class UlyssesAttention(OfWhole, Attention):
    """Attention over all tokens of the text, for some of the heads."""

    op = "ulysses_attention"


class UlyssesSelfAttention(OfWhole, SelfAttention):
    op = "ulysses_self_attention"


def ulysses_attention(query, key, value, t, is_causal=False, scale=None, *, attn_mask=None,
                      dropout_p=0.0, length=None, generator=None):
    """Returns the same as ring_attention, but the text is cut in "contiguous" order. H, the number
    of query heads, must be a multiple of n, the number of ranks. G, the number of key heads, must
    be a multiple of n, or n must be a multiple of G. Otherwise raises ValueError. Each rank makes
    the mask for all queries and all keys, as a single rank does."""
    n, n_heads, n_groups = t.size, query.shape[1], key.shape[1]
    attn_mask = as_mask(t, attn_mask)
    check_heads(t, n_heads)
    if n % n_groups and n_groups % n:
        raise ValueError(f"rank {t.rank}: Ulysses on {n} ranks: the number of key heads must be "
                         f"a multiple of {n}, or must divide {n}; got {n_groups} key heads. "
                         "Use another number of ranks, or method='ring'")
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
    """Returns the same as ring_self_attention, but the text is cut in "contiguous" order. Raises
    ValueError unless n_heads is a multiple of the number of ranks."""
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
    """Returns (mask, options). mask: the mask of this rank's heads, or None without a mask.
    options: the arguments for OfWhole."""
    first, end = (n_heads // t.size * r for r in (t.rank, t.rank + 1))
    if mask is not None:
        mask = mask_at(mask, *map(xp.arange, tokens))
        if mask.ndim > 2 and mask.shape[-3] > 1:
            mask = mask[..., first:end, :, :]
    return mask, dict(t=t, heads=(first, n_heads), tokens=tokens, mask=None, dropout_p=dropout_p,
                      generator=generator)


def check_heads(t, n_heads):
    """Raises ValueError unless n_heads is a multiple of the number of ranks."""
    if n_heads % t.size:
        raise ValueError(f"rank {t.rank}: Ulysses wants a number of heads divisible by {t.size}, "
                         f"the number of ranks; got {n_heads} heads. method='ring' takes any "
                         "number of heads")
