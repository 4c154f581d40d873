"""Samples of unequal lengths: how little of a batch is padding, how little ranks wait.

The plain form: minidl/plain/lengths.py. Here: a budget of tokens, targets, ranks, and formulas.

Waste is padding / all places = 1 - E[L] / E[max L of a batch]. `pools` sorts within pools of some
batches; batches then come in random order. `packs` puts several texts into a row, first fit, the
longest first (Johnson 1973); a mask keeps them apart (GPT, Llama: positions).
With a budget of tokens a batch has as many samples as fit into it when padded: all batches cost
alike.

Ranks wait for the slowest: 1 - E[cost] / E[max cost of size batches]. So batches of like length go
to the ranks of one step: Pipeline.shard(rank, size, groups=seed) deals `size` neighbours. Take
pools of 50 batches for each rank: the few longest of a pool are least alike.

    shape = dict(lengths=n_tokens, tokens=4096)
    Pipeline(texts).group(lengths.pools(**shape), lengths.pad).shard(rank, size, groups=0)
    Pipeline(texts).group(lengths.packs(n_tokens, 512), partial(lengths.pack, capacity=512)
                          ).shard(rank, size).batch(8)         (ids, targets, positions), (8, 512)

Losses are means over real tokens, on all ranks together: padding has the target -100, which cross
entropy leaves out, and DataParallel is told the tokens: model(ids, n_samples=n_real).

Sources: Khomenko et al. 2016 (arXiv 1708.05604) for sorted pools; Krell et al. 2021 (2107.02027)
for packing.   Test: tests/data/test_lengths.py   Tutorial: tutorials/26_input.py
"""

import numpy as np

from minidl.random import Generator
from minidl.tensor import Tensor

POOL_STREAMS = 5 << 60  # of the same seed as orders and samples (sampler.py, pipeline.py)
FILLS = (0, -100)  # ids, targets: cross entropy ignores -100


def pools(lengths, batch_size=None, tokens=None, pool=50, seed=0):
    """lists(epoch) for Pipeline.group: batches of similar length, from random pools of about `pool`
    batches. A batch has batch_size samples, or as many as fit into `tokens` when padded."""
    lengths = _that_fit(lengths, tokens)
    if (batch_size is None) == (tokens is None):
        raise ValueError("pools: give either batch_size or tokens")
    per_batch = batch_size or max(1, int(tokens / max(lengths.mean(), 1)))

    def lists(epoch):
        batches = []
        for which, some in enumerate(_random_pools(len(lengths), per_batch * pool, seed, epoch)):
            some = some[np.argsort(lengths[some], kind="stable")]
            begin, first = 0, len(batches)
            for k, n in enumerate(lengths[some].tolist()):  # n: the longest up to here
                if k > begin and (k - begin == batch_size if batch_size else
                                  (k - begin + 1) * n > tokens):
                    batches.append(some[begin:k].tolist())
                    begin = k
            batches.append(some[begin:].tolist())
            if which % 2:  # up, then down: neighbours are alike where two pools meet, too
                batches[first:] = batches[:first - 1 if first else None:-1]
        return batches

    return lists


def packs(lengths, capacity, pool=1000, seed=0):
    """lists(epoch) for Pipeline.group: rows of `capacity` tokens, packed from random pools of so
    many samples: first fit decreasing."""
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
    """Rows of at most `capacity`: lists of indices. Each goes, the longest first, into the first
    row that has room. A tree over the rows holds the largest room below each node, so that the
    first is found in log2(n) steps."""
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
    """Samples, tuples of vectors, as Tensors (batch, the longest). fills: what pads each field."""
    longest = max(len(s[0]) for s in samples)
    return tuple(Tensor(np.stack([_filled([s[f]], longest, fill) for s in samples]))
                 for f, fill in zip(range(len(samples[0])), fills, strict=True))


def pack(samples, capacity, fills=FILLS):
    """Samples one after the other in one row of `capacity`: (*fields, positions), Tensors of
    one dimension. The positions begin at 0 with every sample; in the padding they are 0."""
    fields = [_filled([s[f] for s in samples], capacity, fill)
              for f, fill in zip(range(len(samples[0])), fills, strict=True)]
    positions = _filled([np.arange(len(s[0])) for s in samples], capacity, 0)
    return tuple(map(Tensor, (*fields, positions)))


def waste(lengths, batches, capacity=None):
    """The part of all places that is padding: measured. capacity: of a row; else the longest."""
    lengths = np.asarray(lengths)
    places = sum(capacity or len(b) * lengths[b].max() for b in batches)
    return 1 - sum(lengths[b].sum() for b in batches) / places


def expected_waste(lengths, batch_size, pool=1):
    """1 - E[L] / E[max]: the formula, from the lengths' distribution alone. pool=1: unsorted.

    The longest of the k-th batch of a sorted pool is the order statistic (k + 1) batch_size of N =
    pool * batch_size draws. It is at most x when at least so many draws are: a binomial tail, here
    by its normal limit with half a draw added; exact, F^batch_size, for pool=1."""
    x, counts = np.unique(lengths, return_counts=True)
    below = counts.cumsum() / counts.sum()  # F(x)
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
    """The part of all ranks' time in which they wait for the slowest; costs (steps, ranks)."""
    costs = np.asarray(costs, float)
    return 1 - costs.mean() / costs.max(axis=1).mean()


def _normal_cdf(z):
    # Abramowitz & Stegun 26.2.17, within 7.5e-8
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
        raise ValueError(f"sample {i} has {lengths[i]} tokens, and a batch or row has room for "
                         f"{most}. Cut it, or make more room")
    return lengths


def _filled(parts, n, fill):
    out = np.full(n, fill, np.asarray(parts[0]).dtype)
    whole = np.concatenate(parts)
    out[:len(whole)] = whole
    return out
