"""embedding_bag: the sum, the mean or the maximum of some rows of a table, for each bag of indices.

    input    [1 2 | 4 5 4]      offsets [0 2]: bag 0 is (1 2), bag 1 is (4 5 4)
    padded    1 2 .             the bags become rows of one length. Then three ops follow, which
              4 5 4             have gradients: embedding, a mask, and a sum along each row

Source: PyTorch's EmbeddingBag.      Test: tests/ops/test_every_op.py (rows in samples_extra.py)
"""

import numpy as np

from minidl.ops.elementwise import div, mul
from minidl.ops.embedding import embedding
from minidl.ops.extreme import max
from minidl.ops.reduce import sum
from minidl.ops.select import masked_fill
from minidl.tensor import Tensor, wrapped


def embedding_bag(input, weight, offsets=None, *, mode="mean", per_sample_weights=None,
                  include_last_offset=False, padding_idx=None):
    """Returns the sum, the mean or the maximum of the rows of `weight` for each bag of indices:
    (bags, width). The result of a bag without indices is zeros.

    input: indices (bags, n), or a vector with the indices of all bags. For a vector, `offsets` has
    the place at which each bag starts.
    mode: "sum", "mean" or "max". per_sample_weights: a factor for each index, only for "sum".
    padding_idx: rows with this index are left out. include_last_offset: True if `offsets` also has
    the end of the last bag."""
    input, weight = wrapped(input), wrapped(weight)
    offsets = None if offsets is None else wrapped(offsets)
    if per_sample_weights is not None:
        per_sample_weights = wrapped(per_sample_weights)
    if mode not in ("sum", "mean", "max"):
        raise ValueError(f"embedding_bag: mode must be 'sum', 'mean' or 'max'; got {mode!r}")
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"embedding_bag: per_sample_weights want mode='sum'; got mode={mode!r}")
    if (offsets is None) != (input.ndim == 2):
        raise ValueError("embedding_bag: want an input of shape (bags, n) without offsets, or a "
                         f"vector with offsets; got shape {tuple(input.shape)}")
    xp, factors = weight._xp, per_sample_weights
    ids = input.array
    inside = xp.ones(ids.shape, bool)
    if offsets is not None:
        places, inside = _bags(xp, offsets.array, ids.size, include_last_offset)
        ids = ids[places] if ids.size else xp.zeros(places.shape, np.int64)
        factors = None if factors is None or not factors.numel() else factors[Tensor(places)]
    if padding_idx is not None:
        inside = inside & (ids != padding_idx % weight.shape[0])
    outside = Tensor(~inside[..., None])
    rows = embedding(Tensor(xp.where(inside, ids, 0)), weight)  # (bags, longest, width)
    if factors is not None:
        rows = mul(rows, factors.unsqueeze(-1))
    if mode == "max":
        if not rows.shape[1]:
            return sum(rows, 1)
        best = max(masked_fill(rows, outside, -np.inf), 1).values
        return masked_fill(best, Tensor(~inside.any(axis=1)[:, None]), 0)
    total = sum(masked_fill(rows, outside, 0), 1)
    if mode == "sum":
        return total
    n = xp.maximum(inside.sum(axis=1), 1).astype(rows.dtype)
    return div(total, Tensor(n[:, None]))


def _bags(xp, starts, n, include_last_offset):
    """Returns two arrays (bags, m), where m is the length of the longest bag. `places` has the
    places of each bag's indices in the input. `inside` is False where a shorter bag has padding,
    else True."""
    if starts.size and int(starts[0]) != 0:
        raise ValueError(f"embedding_bag: offsets[0], the start of the first bag, must be 0; got "
                         f"{starts[0]}")
    ends = xp.concatenate([starts[1:], xp.asarray([n], starts.dtype)])
    if include_last_offset:
        starts, ends = starts[:-1], ends[:-1]
    lengths = ends - starts
    step = xp.arange(int(lengths.max()) if lengths.size else 0)
    inside = step < lengths[:, None]
    return xp.where(inside, starts[:, None] + step, 0), inside
