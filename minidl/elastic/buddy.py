"""Each rank's state in memory, and what only one rank has also on its buddy: rank r's is r + 1.

The plain form: minidl/plain/buddy.py. Here: the copy travels behind the step, only what no other
rank has is sent, several ranks may die, and fewer may go on.

    step k - 1              |  step k                                 |  step k + 1
    .. optimizer.step()     |  forward, backward, optimizer.step()    |
                       copy |== the shard to the buddy, behind ==|    | wait, agree, copy
                            ^ numbers to the buddy, all agree

There are two kinds of state. What all ranks hold alike (weights and moments of data parallelism)
needs no buddy: any survivor has it. But the interrupted step is done again, so each rank keeps a
copy from before it. What only one rank holds, its shard (of ZeRO: block, m, v; what compression
owes), is copied and sent to the buddy. Before the step goes on, a rank's numbers go there: states
of generators, Adam's step, a sampler's position, buffers, names of what is in the shard.

When is which copy whole? `save(k)` begins at the end of step k - 1, when state k is in place:

    1  wait for the shard of k - 1, which travelled behind the step
    2  exchange numbers of k; all agree (a barrier). So every rank has come to k, and its k - 1
       lies on two ranks: what is older may go
    3  copy state k, and begin to send its shard

Until a rank has passed 2 its live state is k; from then to its next 3 it has copies of k and k - 1,
and the buddy of each rank has k - 1, and k if it has come. So after one death all survivors have a
state whose missing shard is there: that of the interrupted step, or of the one before it where
death came before the shard had travelled. Without shards one copy is enough, and it is always the
interrupted step's.

    bytes            held beside the state                    sent in a step
    all have alike   1 copy; 2 if there are shards            0
    a shard of S     2 S, and 2 S of the left neighbour's     S
    numbers          a few kB                                 16 and their length

Of float32 weights under Adam S is 12/n bytes a parameter with ZeRO; with data parallelism 12 bytes
a parameter are copied and none sent.

A divided model (a grid of tensor or pipeline parallel ranks) is all shard: S is all that the rank
has, though its replicas along dp have some of it, too. Parts have no place on fewer ranks, so it
goes on in place on as many ranks as before, each with the state of the old rank of its number.

A death of f of N ranks at once takes state with it if a rank and its buddy are among them: with
probability 1 - N/(N-f) C(N-f, f) / C(N, f), for two 2/(N-1). Then there is the snapshot. Without
shards one survivor is enough: a pair takes only its random numbers' states with it.

Source: Zheng et al. 2004, "FTC-Charm++" (double in-memory checkpoints)
Test: tests/elastic/test_buddy.py   Used by: heal.py
"""

import contextlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minidl import backend
from minidl.comm import objects, tree
from minidl.comm.transport.background import Background
from minidl.parallel.data.compress import Compressed
from minidl.snapshot import divided, regions, snapshot


@dataclass
class Copy:
    """A rank's state at the beginning of a step, on the host.

    numbers  a message of objects.py: what `_parts` says
    shard    what only this rank has, flat bytes; None as long as it has not come
    common   what all ranks have, flat bytes; None of a neighbour's"""

    numbers: np.ndarray
    shard: np.ndarray = None
    common: np.ndarray = None


class Report(NamedTuple):
    """What a survivor can give back: of `rank` of `size` its own state at the steps `mine`, and the
    left neighbour's at the steps `theirs`. generation: how often ranks had been lost before.
    sharded: whether ranks hold what no other one holds. divided: the model's tensors are."""

    generation: int
    rank: int
    size: int
    sharded: bool
    mine: list
    theirs: list
    divided: bool = False


class Buddies:
    """The copies of one rank; all ranks of t make one and call together.

    objects     {name: what has state_dict()}, "model" and perhaps "optimizer" among them
    exposed_s   how long save() has waited for other ranks; copied_s: and copied its own state"""

    def __init__(self, t, objects, generation=0):
        self.t, self.objects, self.generation = t, objects, generation
        self.left, self.right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
        self.background = Background(t)
        self.mine, self.theirs = {}, {}  # {step: Copy}
        self.live = None  # (step, numbers): the objects are at that step, and not copied yet
        self.job = None  # the shards under way
        self.divided = divided.is_divided(objects["model"])
        self.sharded = self.divided or any(not r.whole for *_, r in regions.arrays_of(
            objects["model"], objects.get("optimizer")))
        self.exposed_s = self.copied_s = 0.0

    def save(self, step):
        """The objects are at the beginning of `step`: keep that."""
        self.settle()
        start = self.t.time()
        shard, common, numbers = _parts(self.t, self.objects)
        self.live = step, objects.pack(numbers)
        theirs, n_bytes = self._swap_numbers(_n_bytes(numbers["shard"]))
        if not self.sharded:  # then that is all of it
            theirs.shard = np.empty(0, np.uint8)
            self.theirs[step] = theirs
        with self.t.named("buddy agreement"):
            tree.barrier(self.t)
        waited = self.t.time()
        oldest = step - 1 if self.sharded else step
        rooms = [room for copies in (self.mine, self.theirs)
                 for old in sorted(copies) if old < oldest
                 for room in vars(copies.pop(old)).values() if room is not None]
        self.mine[step] = mine = Copy(self.live[1], _copy(shard, rooms), _copy(common, rooms))
        self.live, self.theirs[step] = None, theirs
        if self.sharded and self.t.size > 1:
            self.job = self.background.submit(_send, self, mine.shard, _room(n_bytes, rooms),
                                              theirs)
        self.exposed_s += waited - start
        self.copied_s += self.t.time() - waited

    def _swap_numbers(self, shard_bytes):
        """(a Copy with the left neighbour's numbers, the bytes of its shard)."""
        t, (_, numbers) = self.t, self.live
        sizes = np.array([numbers.nbytes, shard_bytes], np.int64)
        if t.size == 1:
            return Copy(numbers), 0
        with t.named("buddy numbers"):
            theirs = t.sendrecv(sizes, self.right, np.empty_like(sizes), self.left)
            room = np.empty(theirs[0], np.uint8)
            return Copy(t.sendrecv(numbers, self.right, room, self.left)), int(theirs[1])

    def settle(self):
        """Wait for the shards under way."""
        job, self.job = self.job, None
        if job is not None:
            start = self.t.time()
            job.wait()
            self.exposed_s += self.t.time() - start

    def report(self):
        """After a death, when all calls under way have ended: what is here."""
        with contextlib.suppress(Exception):  # the job's: its send may have failed, and what the
            self.settle()                     # left neighbour sent have come
        mine = [*self.mine, *([self.live[0]] if self.live else ())]
        theirs = [step for step, copy in self.theirs.items() if copy.shard is not None]
        return Report(self.generation, self.t.rank, self.t.size, self.sharded, mine, theirs,
                      self.divided)

    def let_go(self, step=None):
        """Of the objects, for memory; if their state is the chosen step's, it is copied first."""
        if self.live and self.live[0] == step and step not in self.mine:
            shard, common, _ = _parts(self.t, self.objects)
            self.mine[step] = Copy(self.live[1], _copy(shard), _copy(common))
        self.objects = self.live = None

    def n_bytes(self):
        """Bytes of the copies on this rank, without the numbers."""
        copies = [*self.mine.values(), *self.theirs.values()]
        return sum(a.nbytes for c in copies for a in (c.shard, c.common) if a is not None)


def _send(t, buddies, shard, room, theirs):
    """In the background: my shard to the right, the left one's into `room`."""
    with t.named("buddy shard"):
        incoming = t.irecv(room, buddies.left)
        outgoing = t.isend(shard, buddies.right)
        incoming.wait()
        theirs.shard = room  # it is here, whatever becomes of mine
        outgoing.wait()


def shard_bytes(model, optimizer=None):
    """S of this rank: bytes of what no other rank has."""
    return sum((r.end - r.first) * array.dtype.itemsize
               for _, array, r in regions.arrays_of(model, optimizer) if not r.whole)


# -- what a rank has


def _parts(t, named):
    """(shard, common, numbers). The first two are lists of (key, first, end, array): elements of
    named tensors (snapshot/regions.py), the arrays are the live ones."""
    model, optimizer, others = _sorted_out(named)
    in_parts = divided.is_divided(model)
    if uneven := [key for key, it in others.items() if hasattr(it, "rows")]:
        raise TypeError(f"rank {t.rank}: {', '.join(uneven)} has rows of its own on each rank, "
                        "which no other rank keeps: use minidl run --restarts in place of --heal")
    if in_parts and isinstance(model, Compressed):
        raise TypeError(f"rank {t.rank}: what compression owes of a divided model is not kept: "
                        "train an uncompressed one, or without --heal")
    shard, common, buffers = [], [], {}
    for key, array, r in regions.arrays_of(model, optimizer):
        if key.startswith("buffer/"):  # each rank has its own, and rank 0's count; they are small
            buffers[key] = backend.to_device(r.of(array), "cpu").copy()
        elif r.first < r.end:
            kind = common if r.whole and not in_parts else shard
            kind.append((key, r.first, r.end, r.of(array)))
    for entries in (shard, common):  # the widest first: then all are aligned
        entries.sort(key=lambda entry: -entry[3].dtype.itemsize)
    # as rank 0, which may be lost
    taken = snapshot.take(t, 0, 1, model, optimizer, others, gather=False)
    return shard, common, {"part": taken.part, "body": taken.body, "buffers": buffers,
                           "shard": _holds(shard), "common": _holds(common)}


def _sorted_out(named):
    """(model, optimizer, the others)."""
    others = {key: it for key, it in named.items() if key not in ("model", "optimizer")}
    return named["model"], named.get("optimizer"), others


def _holds(entries):
    return [(key, first, end, array.dtype) for key, first, end, array in entries]


def _n_bytes(holds):
    return sum((end - first) * dtype.itemsize for _, first, end, dtype in holds)


def _room(n_bytes, rooms):
    """One of the rooms that has this size, taken from them; else a new one."""
    fits = [i for i, room in enumerate(rooms) if room.nbytes == n_bytes]
    return rooms.pop(fits[0]) if fits else np.empty(n_bytes, np.uint8)


def _copy(entries, rooms=()):
    """The entries' elements, one after another, flat."""
    holds = _holds(entries)
    flat = _room(_n_bytes(holds), rooms)
    for (*_, array), view in zip(entries, _views(flat, holds).values(), strict=True):
        view[...] = backend.to_device(array, "cpu")
    return flat


def _views(flat, holds):
    """{"key/first": 1-d array}: what lies in flat bytes."""
    views, at = {}, 0
    for key, first, end, dtype in holds:
        views[f"{key}/{first}"] = flat[at:at + (end - first) * dtype.itemsize].view(dtype)
        at += (end - first) * dtype.itemsize
    return views


# -- what can be given back, and giving it


def choose(reports):
    """(generation, step) of the newest state that the survivors have together; None if there is
    none: a rank with a shard and its buddy are lost, or a divided model has fewer ranks.

    reports: of each rank a list of Reports, empty of a newcomer; two where a second death came
    before all copies after the first were whole."""
    for generation in sorted({r.generation for each in reports for r in each}, reverse=True):
        here = [r for each in reports for r in each if r.generation == generation]
        size, alive = here[0].size, {r.rank: r for r in here}
        if here[0].divided and len(reports) != size:
            continue  # parts have no place on another number of ranks
        steps = set.intersection(*(set(r.mine) for r in here))
        for lost in set(range(size)) - set(alive):
            buddy = alive.get((lost + 1) % size)
            if buddy or here[0].sharded:
                steps &= set(buddy.theirs if buddy else ())
        if steps:
            return generation, max(steps)
    return None


def why_nothing(reports):
    """Returns why choose() finds no state, in words."""
    here = [r for each in reports for r in each]
    if not here:
        return "No rank had kept a state yet"
    newest = max(r.generation for r in here)
    alive = {r.rank for r in here if r.generation == newest}
    size = next(r.size for r in here if r.generation == newest)
    if any({rank, (rank + 1) % size}.isdisjoint(alive) for rank in range(size)):
        return "A rank and its buddy died together"
    return "The ranks that are left have no step in common"


def restore(t, buddies, reports, chosen, fresh):
    """Put the chosen state into `fresh`, objects that were made on t.

    buddies: this rank's of that generation; None of a newcomer. Sent: numbers to all; shards, and
    what all ranks have, to those that need some of it and have it not."""
    generation, step = chosen
    in_parts = divided.is_divided(fresh["model"])  # then all comes from the rank of this number
    here = {r.rank: rank for rank, each in enumerate(reports) for r in each
            if r.generation == generation}
    size = next(r.size for each in reports for r in each if r.generation == generation)
    holders = {(old - 1) % size: rank for old, rank in here.items()} | here  # of each old rank
    flats, given = {}, {}
    if buddies is not None:
        copies = {buddies.left: buddies.theirs.get(step), buddies.t.rank: buddies.mine[step]}
        flats = {old: copy.shard for old, copy in copies.items()
                 if copy is not None and copy.shard is not None}
        flats["common"] = copies[buddies.t.rank].common
        given = {old: copies[old].numbers for old, rank in holders.items() if rank == t.rank}
    with t.named("restore"):
        given = {old: it for each in objects.all_gather(t, given) for old, it in each.items()}
        # all old ranks'; but for those who died with their buddy, where nothing is sharded
        numbers = {old: objects.unpack(given[old]) for old in sorted(given)}
        first = numbers[t.rank if in_parts else min(numbers)]
        holds = {old: each["shard"] for old, each in numbers.items()}
        holds["common"], holders["common"] = first["common"], min(here.values())
        buffers = {f"{key}/0": array for key, array in first["buffers"].items()}
        index = snapshot.index_of(
            step, [each["part"] | {"draws": i, "file": {
                "name": old, "holds": [h[:3] for h in holds[old]]}}
                   for i, (old, each) in enumerate(numbers.items())], first["body"])
        index["files"] += [
            {"name": "common", "holds": [h[:3] for h in holds["common"]]},
            {"name": "buffers", "holds": [(key, 0, array.size)
                                          for key, array in first["buffers"].items()]}]

        def fill(targets):
            _fetch(t, flats, holds, holders, [t.rank] if in_parts else [
                name for name in holds if _overlaps(holds[name], targets)])
            views = {name: _views(flat, holds[name]) for name, flat in flats.items()}
            views["buffers"] = buffers
            if in_parts:
                _put_back(targets, buffers | views[t.rank])
            else:
                snapshot.fill(index, targets, lambda name, key: views[name][key])

        model, optimizer, others = _sorted_out(fresh)
        if in_parts:
            index["draws"] = objects.all_gather(t, divided.draws(t, model))
        snapshot.put(index, fill, t, t.rank, t.size, model, optimizer, others)


def _put_back(targets, values):
    """Each region as it was on the rank of this number. values: {"key/first": elements}."""
    for key, array, region in targets:
        if region.first < region.end:
            was = values[f"{key}/{region.first}"].reshape(-1)
            region.put(array, backend.to_device(was, backend.device_of(array)))


def _fetch(t, flats, holds, holders, needed):
    """Fill up `flats` with what of `needed` this rank has not."""
    wanted = objects.all_gather(t, [name for name in needed if name not in flats])
    for name, holder in holders.items():
        for rank in range(t.size):
            if name in wanted[rank] and t.rank == holder:
                t.send(flats[name], rank)
            elif name in wanted[rank] and t.rank == rank:
                flats[name] = t.recv(np.empty(_n_bytes(holds[name]), np.uint8), holder)


def _overlaps(holds, targets):
    """Whether some of these elements are among the targets'."""
    wanted = {}
    for key, _, r in targets:
        wanted.setdefault(key, []).append((r.first, r.end))
    return any(max(first, a) < min(end, b)
               for key, first, end, _ in holds for a, b in wanted.get(key, ()))
