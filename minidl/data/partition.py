"""Deals units to ranks like cards. After a restart, deals the unused units to any number of ranks.
A unit is a sample, a batch, or a list of samples. `size` is the number of ranks.

The plain form: minidl/plain/shuffle.py. This file adds four ways to treat the tail, which has fewer
units than there are ranks. It can also keep neighbouring units together. After a restart it can
deal the unused units even if the ranks have used unequal numbers of units.

    units         a b c d e f g h i j        the units of an epoch, in order; four ranks
    round 0       a b c d                    rank r takes units r, r + size, r + 2 size ...
    round 1       e f g h
    the tail      i j . .                    "pad": the first units again        "drop": not dealt
                                             "uneven": two ranks get no unit here
                                             "split": lists of samples are halved until each rank
                                                      has a list

Each rank counts the rounds that it has used. `left` returns the units that no rank has used, in
their original order. These units can be dealt to any number of ranks. So the position of a run is a
list. At the start of an epoch the list has one entry. Each time the run goes on with another number
of ranks in the same epoch, the list gets one more entry. An entry is

    [size, rounds used by rank 0, rounds used by rank 1, ...]   or
    [size, rounds]                                              if all ranks used the same number

With a `generator`, dealt() keeps neighbours together. Each group of `size` neighbours is one round,
and the rounds come in random order. If the units are batches sorted by length, the batches of one
round have about the same length on all ranks.

Source: torch.utils.data.distributed.DistributedSampler (dealing, padding, dropping).
Test: tests/data/test_pipeline.py, test_sampler.py   Used by: sampler.py, pipeline.py
"""

import numpy as np

TAILS = ("pad", "drop", "uneven", "split")


def check(rank, size, tail, tails=TAILS):
    """Raises ValueError unless 0 <= rank < size and `tail` is one of `tails`."""
    if not 0 <= rank < size:
        raise ValueError(f"rank must be in [0, size), got rank {rank} of size {size}")
    if tail not in tails:
        raise ValueError(f"tail must be one of {', '.join(tails)}; got {tail!r}")


def dealt(units, size, tail, spare=(), generator=None):
    """Returns the units in the order in which they are dealt: unit k goes to rank k % size.

    units:     an array (n,). If tail is "split", an array (n, 3) with the rows (list, begin, end).
    spare:     units. If tail is "pad", the missing units are taken from the start of `spare`.
    generator: draws the order of the groups of `size` neighbours. If None, there are no groups."""
    n_short = -len(units) % size
    if tail == "drop":
        units = units[:len(units) - len(units) % size]
    elif tail == "pad" and n_short and len(spare):
        units = np.concatenate([units, np.resize(spare, n_short)])
    elif tail == "split":
        units = split(units, n_short, size)
    if generator is not None and len(units):
        groups = [units[i:i + size] for i in range(0, len(units), size)]
        units = np.concatenate([groups[i] for i in generator.permutation(len(groups))])
    return units


def split(units, n_more, size):
    """Halves the list that has the most samples. Does this n_more times. Returns `units` with
    n_more additional rows, an array (n + n_more, 3). A row is (list, begin, end). Raises ValueError
    if every list has only one sample."""
    rows = [tuple(row) for row in units.tolist()]
    for _ in range(n_more):
        k = max(range(len(rows)), key=lambda i: rows[i][2] - rows[i][1])
        which, begin, end = rows[k]
        middle = (begin + end + 1) // 2
        if end - begin < 2:
            raise ValueError(f"{len(rows)} lists of one sample cannot be divided among {size} "
                             f"ranks; want a number of samples that is divisible by {size}. Take "
                             "fewer ranks, or tail='pad', 'drop' or 'uneven'")
        rows[k:k + 1] = (which, begin, middle), (which, middle, end)
    return np.array(rows, np.int64).reshape(-1, 3)


def left(units, entry, order):
    """Returns the units that no rank has used.

    entry: one entry of a position, [size, rounds used by each rank].
    order: the units as dealt() returned them for this entry."""
    size, *used = entry
    used = used * size if len(used) == 1 else used
    k = np.arange(len(order))
    taken = k // size < np.array(used)[k % size]
    if order.ndim == 1:
        return units[~np.isin(units, order[taken])]
    rest = order[~taken]
    return rest[np.lexsort((rest[:, 1], rest[:, 0]))]
