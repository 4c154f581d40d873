"""The stages of a pipeline. Each stage turns a sequence into a sequence, for one epoch.

    Elements(n, get, number)        n elements. get(i) returns element i. number(i) returns the
                                    number of element i, counted over all ranks

get is the function of the stage before, and get' is the function of this stage. b is the number of
elements in a batch.

    shuffle     get'(i) = get(order[i])          shard   get'(i) = get(rank + size i)
    map         get'(i) = fn(get(i))             batch   get'(i) = collate(get(b i), ... )

A stage is called as stage(below, where, ...). `below` are the Elements of the stage before.
`where` is (epoch, seed, depth, position). depth: the number of the stage in its pipeline. position:
the position from which the pass starts (partition.py).

Test: tests/data/test_pipeline.py   Used by: pipeline.py
"""

import contextlib
import itertools
from typing import NamedTuple

import numpy as np

from minidl.data import cache, partition, sampler
from minidl.random import Generator, using

# The first random stream for samples. Weights, dropout and orders (sampler.py) use lower streams.
SAMPLE_STREAMS = 1 << 63
GROUP_STREAMS = 3 << 61  # streams for orders of groups: between sampler.py's and SAMPLE_STREAMS
DROPPED = object()  # filter() puts this object in the place of a dropped element


class Elements(NamedTuple):
    """The n elements that a stage gives in one epoch. All fields except n are functions or None."""

    n: int
    get: object  # get(i) returns element i, for i in range(n)
    number: object  # number(i) returns the number of element i, the same for any number of ranks
    members: object = None  # for batches: members(i) returns the indices of batch i's elements
    load: object = None  # for batches: load(indices) returns the batch of these elements
    used: object = None  # used(i) returns how many rounds of shard() the first i elements use


def stream(seed, epoch, depth, number):
    """Returns the random Generator of one element, in one epoch and for one stage. number: the
    number of the element. depth: the number of the stage."""
    return Generator(seed, SAMPLE_STREAMS + (depth << 57) + ((epoch << 36) + int(number))
                     % (1 << 57))


def mapped(below, where, fn):
    """Replaces each element by fn(element). Each call draws from the element's own random stream.
    """
    epoch, seed, depth, _ = where

    def get(i):
        x = below.get(i)
        if x is DROPPED:
            return x
        with using(stream(seed, epoch, depth, below.number(i))):
            return fn(x)

    return below._replace(get=get, members=None, load=None)


def filtered(below, where, keep):
    """Replaces an element by DROPPED unless keep(element) is true."""
    return mapped(below, where, lambda x: x if keep(x) else DROPPED)


def shuffled(below, where, seed):
    """Puts the elements into the random order of this epoch."""
    order = sampler.order(below.n, seed, where[0])
    return _permuted(below, order)


def _permuted(below, order):
    members = below.members and (lambda i: below.members(order[i]))
    return below._replace(n=len(order), get=lambda i: below.get(order[i]), members=members,
                          number=lambda i: below.number(order[i]))


def interleaved(below, where, fn, cycle, block):
    """fn turns each element into a part, which is a sequence. Takes the elements of `cycle` parts
    in turn, `block` elements of a part at a time."""
    parts = [fn(part) for part in map(below.get, range(below.n)) if part is not DROPPED]
    waiting, places = iter(enumerate(map(len, parts))), []
    turn = [[which, 0, n] for which, n in itertools.islice(waiting, cycle)]
    while turn:
        for slot in turn:
            which, at, n = slot
            slot[1] = min(at + block, n)
            places += [(which, k) for k in range(at, slot[1])]
            if slot[1] == n:
                slot[:] = next(((which, 0, n) for which, n in waiting), (None, 0, 0))
        turn = [slot for slot in turn if slot[0] is not None]
    places = np.array(places, np.int64).reshape(-1, 2)

    def get(i):
        which, k = places[i].tolist()
        return parts[which][k]

    return Elements(len(places), get, lambda i: i)


def cached(below, where, kept):
    """Returns Elements that are computed only once. get(i) looks for element i in the mapping
    `kept`. If the element is not there, get(i) computes it and stores (element,) in `kept`. For a
    dropped element it stores None."""
    def get(i):
        number = int(below.number(i))
        with contextlib.suppress(KeyError):  # the value is missing or damaged
            x = kept[number]
            return DROPPED if x is None else x[0]
        x = below.get(i)
        kept[number] = None if x is DROPPED else (x,)
        return x

    if isinstance(kept, cache.Folder):
        kept.begin(below.n)
    return below._replace(get=get)


def sharded(below, where, rank, size, tail, groups):
    """Keeps the elements of this rank. After a restart, leaves out the elements that were used
    before the saved position (partition.py)."""
    epoch, position = where[0], where[3]
    n, units = below.n, np.arange(below.n)
    if tail is None:
        tail = "pad" if below.members is None else "split"
    if tail == "split":
        if below.members is None:
            raise ValueError("shard: tail='split' halves batches of group(), but this pipeline has "
                             "single elements. Take tail='pad', 'drop' or 'uneven'")
        units = np.stack([units, 0 * units, [len(below.members(i)) for i in range(n)]], axis=1)
    everything = units

    def dealt(units, size, k):
        order = None if groups is None else Generator(
            groups, GROUP_STREAMS + (epoch << 16) + k)
        return partition.dealt(units, size, tail, everything, order)

    earlier, start = before(position, size), 0
    for k, entry in enumerate(earlier):
        units = partition.left(units, entry, dealt(units, entry[0], k))
    if len(earlier) < len(position):
        _, *rounds = position[-1]
        start = rounds[rank % len(rounds)]
    own = dealt(units, size, len(earlier))[rank::size][start:]
    if tail != "split":
        return _permuted(below, own)._replace(used=lambda i: start + i)

    def get(i):
        which, begin, end = own[i].tolist()
        return below.load(below.members(which)[begin:end])

    return Elements(len(own), get, lambda i: below.number(own[i, 0]) * 64 + own[i, 1] % 64,
                    used=lambda i: start + i)


def before(position, size):
    """Returns the entries of a position (partition.py) that are finished. Only the last entry may
    be unfinished. It is unfinished if it is for `size` ranks, because each rank then continues
    where it stopped."""
    return position[:-1] if position and position[-1][0] == size else position


def grouped(below, where, lists, collate):
    """Makes a batch from each list of indices in lists(epoch)."""
    rows = lists(where[0])
    return _batches(below, len(rows), lambda i: rows[i], collate, lambda i: i)


def batched(below, where, batch_size, drop_last, collate):
    """Makes batches of batch_size neighbouring elements."""
    n = below.n // batch_size if drop_last else -(-below.n // batch_size)

    def members(i):
        return range(i * batch_size, min((i + 1) * batch_size, below.n))

    new = _batches(below, n, members, collate, lambda i: below.number(i * batch_size))
    return new._replace(used=lambda i: below.used(min(i * batch_size, below.n)))


def _batches(below, n, members, collate, number):
    def load(places):
        try:
            return collate([below.get(j) for j in places])
        except Exception as error:
            error.add_note(f"while loading samples {[int(below.number(j)) for j in places]}")
            raise

    return Elements(n, lambda i: load(members(i)), number, members, load, below.used)
