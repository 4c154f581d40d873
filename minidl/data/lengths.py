"""Batches of samples of unequal lengths, with little padding and little waiting between ranks.

The plain form: minidl/plain/lengths.py. This file adds targets, ranks, formulas, and batches with a
budget of tokens.

Each token and each padding value takes one place in a batch. L is the length of a sample, and E is
the mean. Waste is the fraction of all places that is padding: 1 - E[L] / E[max L of a batch].
`pools` makes random pools of samples, sorts each pool by length, and cuts it into batches. With a
budget of tokens, each batch has as many samples as the budget allows, so all batches have about the
same cost. `packs` puts several texts into one row. The longest text comes first, and each text goes
into the first row that has room (Johnson 1973). A mask separates the texts of a row (the argument
`positions` of GPT and Llama).

Ranks wait for the slowest rank. Let `size` be the number of ranks. The fraction of time in which
they wait is 1 - E[cost] / E[max cost of `size` batches]. So the batches of one step should have
similar lengths on all ranks. In Pipeline.shard(rank, size, groups=seed), `size` neighbouring
batches are the batches of one step. Use pools of 50 batches for each rank. In such a pool only the
few longest batches differ much from their neighbours.

    shape = dict(lengths=n_tokens, tokens=4096)
    Pipeline(texts).group(lengths.pools(**shape), lengths.pad).shard(rank, size, groups=0)
    Pipeline(texts).group(lengths.packs(n_tokens, 512), partial(lengths.pack, capacity=512)
                          ).shard(rank, size).batch(8)      (ids, targets, positions), each (8, 512)

The loss is a mean over the real tokens of all ranks. Padding has the target -100, which cross
entropy leaves out. DataParallel needs the number of real tokens: model(ids, n_samples=n_real).

Sources: Khomenko et al. 2016 (arXiv 1708.05604) for sorted pools; Krell et al. 2021 (2107.02027)
for packing.   Test: tests/data/test_lengths.py   Tutorial: tutorials/26_input.py
"""

import numpy as np

from minidl.random import Generator
from minidl.tensor import Tensor

POOL_STREAMS = 5 << 60  # the first of the random streams that only pools() and packs() use
FILLS = (0, -100)  # ids are padded with 0, targets with -100, which cross entropy ignores


def pools(lengths, batch_size=None, tokens=None, pool=50, seed=0):
    """Returns a function, lists, for Pipeline.group. lists(epoch) returns a list with all batches
    of the epoch. A batch is a list of indices. The samples of a batch have similar lengths.

    lengths:    the length of each sample.
    batch_size: how many samples a batch has. Pass either batch_size or tokens.
    tokens:     the largest number of tokens in a batch, including padding.
    pool:       about how many batches a random pool has."""
    lengths = _that_fit(lengths, tokens)
    if (batch_size is None) == (tokens is None):
        raise ValueError("pools: pass either batch_size or tokens; got both or neither")
    per_batch = batch_size or max(1, int(tokens / max(lengths.mean(), 1)))

    def lists(epoch):
        batches = []
        for which, some in enumerate(_random_pools(len(lengths), per_batch * pool, seed, epoch)):
            some = some[np.argsort(lengths[some], kind="stable")]
            begin, first = 0, len(batches)
            for k, n in enumerate(lengths[some].tolist()):  # n: the longest length so far
                if k > begin and (k - begin == batch_size if batch_size else
                                  (k - begin + 1) * n > tokens):
                    batches.append(some[begin:k].tolist())
                    begin = k
            batches.append(some[begin:].tolist())
            # The lengths rise in one pool and fall in the next pool. So the last batch of a pool
            # and the first batch of the next pool have similar lengths, too.
            if which % 2:
                batches[first:] = batches[:first - 1 if first else None:-1]
        return batches

    return lists


def packs(lengths, capacity, pool=1000, seed=0):
    """Returns a function, lists, for Pipeline.group. lists(epoch) returns a list with all rows of
    the epoch. A row is a list of indices. The samples of a row have at most `capacity` tokens
    together.

    lengths: the length of each sample.
    pool:    how many samples are packed together, by first fit decreasing."""
    lengths = _that_fit(lengths, capacity)

    def lists(epoch):
        rows = []
        for some in _random_pools(len(lengths), pool, seed, epoch):
            rows += [[int(some[k]) for k in row]
                     for row in first_fit_decreasing(lengths[some], capacity)]
        order = Generator(seed, POOL_STREAMS + (1 << 59) + epoch).permutation(len(rows))
        return [rows[i] for i in order]

    return lists


def first_fit_decreasing(lengths, capacity):
    """Returns rows, as lists of indices. The lengths of a row sum to at most `capacity`. The
    longest sample comes first, and each sample goes into the first row that has room. A binary tree
    over the rows finds this row in log2(n) steps. A node of the tree holds the largest free room of
    the rows below this node."""
    n_leaves = 1 << max(0, len(lengths) - 1).bit_length()
    room, rows = [capacity] * (2 * n_leaves), []
    for k in np.argsort(-np.asarray(lengths), kind="stable").tolist():
        n, node = int(lengths[k]), 1
        while node < n_leaves:
            node = 2 * node if room[2 * node] >= n else 2 * node + 1
        if node - n_leaves == len(rows):
            rows.append([])
        rows[node - n_leaves].append(k)
        room[node] -= n
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return rows


def pad(samples, fills=FILLS):
    """Returns a tuple of Tensors (batch, longest), one for each field. samples: tuples of vectors.
    fills: the padding value of each field."""
    longest = max(len(s[0]) for s in samples)
    return tuple(Tensor(np.stack([_filled([s[f]], longest, fill) for s in samples]))
                 for f, fill in zip(range(len(samples[0])), fills, strict=True))


def pack(samples, capacity, fills=FILLS):
    """Puts all samples into one row, one after another. Padding fills the rest of the row. Returns
    a Tensor (capacity,) for each field, and then `positions`, another Tensor (capacity,). The
    positions start at 0 in every sample, and are 0 in the padding. samples: tuples of vectors.
    fills: the padding value of each field."""
    fields = [_filled([s[f] for s in samples], capacity, fill)
              for f, fill in zip(range(len(samples[0])), fills, strict=True)]
    positions = _filled([np.arange(len(s[0])) for s in samples], capacity, 0)
    return tuple(map(Tensor, (*fields, positions)))


def waste(lengths, batches, capacity=None):
    """Returns the number of padding values, divided by the number of all values in these batches.
    batches: lists of indices. capacity: the length of each packed row. If None, each batch is
    padded to the length of its longest sample."""
    lengths = np.asarray(lengths)
    places = sum(capacity or len(b) * lengths[b].max() for b in batches)
    return 1 - sum(lengths[b].sum() for b in batches) / places


def expected_waste(lengths, batch_size, pool=1):
    """Returns the expected waste, 1 - E[L] / E[max L of a batch], from the distribution of the
    lengths. L is the length of a sample, and E is the mean. With pool=1 the samples are not sorted.

    Sort N = pool * batch_size random lengths. The longest length of batch k, k = 0, 1, ..., is
    number (k + 1) * batch_size in the sorted order. This length is at most x if at least (k + 1) *
    batch_size of the N lengths are at most x. The probability of this is a binomial tail. The
    function approximates the tail by the normal distribution, with a continuity correction of 1/2.
    For the last batch the probability is exact: F(x)**N. F(x) is the fraction of the lengths that
    are at most x."""
    x, counts = np.unique(lengths, return_counts=True)
    below = counts.cumsum() / counts.sum()  # F(x), the fraction of the lengths that are at most x
    if pool == 1:
        cdf = [below**batch_size]
    else:
        n = pool * batch_size
        ranks = batch_size * np.arange(1, pool + 1)[:, None]
        spread = np.sqrt(np.maximum(n * below * (1 - below), 1e-12))
        cdf = _normal_cdf((n * below - ranks + 0.5) / spread)
        cdf[-1] = below**n
    longest = [(x * np.diff(f, prepend=0)).sum() for f in cdf]
    return 1 - np.mean(lengths) / np.mean(longest)


def waiting(costs):
    """Returns the fraction of the time in which the ranks wait for the slowest rank. costs: the
    cost of each batch, an array (steps, ranks)."""
    costs = np.asarray(costs, float)
    return 1 - costs.mean() / costs.max(axis=1).mean()


def _normal_cdf(z):
    # Abramowitz & Stegun, formula 26.2.17. The error is at most 7.5e-8.
    t = 1 / (1 + 0.2316419 * np.abs(z))
    tail = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * t * (0.319381530 + t * (
        -0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    return np.where(z > 0, 1 - tail, tail)


def _random_pools(n, n_pool, seed, epoch):
    order = Generator(seed, POOL_STREAMS + epoch).permutation(n)
    return [order[i:i + n_pool] for i in range(0, n, n_pool)]


def _that_fit(lengths, most):
    lengths = np.asarray(lengths)
    if most is not None and len(lengths) and lengths.max() > most:
        i = int(lengths.argmax())
        raise ValueError(f"sample {i} has {lengths[i]} tokens, but a batch or a row has room for "
                         f"only {most} tokens. Cut the sample, or make more room")
    return lengths


def _filled(parts, n, fill):
    out = np.full(n, fill, np.asarray(parts[0]).dtype)
    whole = np.concatenate(parts)
    out[:len(whole)] = whole
    return out
