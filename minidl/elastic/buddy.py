"""Copies of each rank's state in memory. Rank r + 1 is the buddy of rank r, and keeps r's state.

The plain form: minidl/plain/buddy.py. In this file the copy is sent while the next step runs. State
is sent only if no other rank has it. If several ranks die, the others can still continue.

    step k - 1              |  step k                                 |  step k + 1
    .. optimizer.step()     |  forward, backward, optimizer.step()    |
                       copy |== the shard goes to the buddy =====|    | wait, agree, copy
                            ^ numbers to the buddy, all agree

There are two kinds of state. Common state is equal on all ranks (weights and moments of data
parallelism). Common state needs no buddy, because every survivor has it. But the interrupted step
is done again, so each rank keeps a copy of the common state from before the step. A shard is state
that only one rank has. With ZeRO, it is the rank's block of the weights and of Adam's moments m and
v. With compression, it is the rank's residuals. A shard is copied and sent to the buddy. Before the
next step begins, the buddy also gets the rank's "numbers": the states of generators, Adam's step, a
sampler's position, buffers, and the names of the arrays in the shard.

When is a copy complete? `save(k)` begins at the end of step k - 1, when the objects have state k:

    1  wait until the shard of k - 1 has been sent (this happens while step k - 1 runs)
    2  exchange the numbers of k; all ranks agree (a barrier). So every rank has reached k, and
       the state k - 1 of each rank is on two ranks. Older copies are deleted
    3  copy state k, and begin to send its shard

Before point 3, state k is only in the objects themselves. From point 3 of this save until point 3
of the next save, a rank has copies of k and k - 1. The buddy of each rank has the rank's shard of
k - 1, and also the shard of k if this shard has arrived. So after one death the survivors together
have a complete state, with the dead rank's shard. Usually it is the state of the interrupted step.
But if the rank died before its shard had arrived, it is the state of the previous step. Without
shards one copy is enough, and this copy always has the state of the interrupted step.

    bytes            held in addition to the state            sent in a step
    common state     1 copy; 2 if there are shards            0
    shard, S bytes   2 S, and 2 S for the left neighbour      S
    numbers          a few kB                                 16, and the bytes of the numbers

For float32 weights with Adam, and ZeRO on n ranks, S is 12/n bytes for each parameter. With data
parallelism 12 bytes for each parameter are copied, and none are sent.

In a divided model (a grid of tensor or pipeline parallel ranks) a rank's whole state is its shard.
The whole state is the shard, even if other ranks (along the grid's data-parallel axis dp) hold a
part of the same state. The parts of the model do not fit on fewer ranks. So the run of a divided
model can use these copies only on the same number of ranks. Each rank gets the state of the old
rank with the same rank number.

Suppose that f of N ranks die together. State is lost if a rank and its buddy are among the dead
ranks. The probability of this loss is 1 - N/(N-f) C(N-f, f) / C(N, f). For f = 2 this is 2/(N-1).
C(N, f) is the binomial coefficient. If state is lost, the run goes back to the snapshot. Without
shards one survivor is enough. Then, if a rank and its buddy die together, only the states of their
random generators are lost.

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

    numbers  the dict `numbers` of _parts(), packed by objects.py
    shard    state that only this rank has, 1-d bytes. In the copy of a neighbour's state,
             `shard` is None until the neighbour's shard has arrived
    common   state that all ranks have, 1-d bytes. None in the copy of a neighbour's state"""

    numbers: np.ndarray
    shard: np.ndarray = None
    common: np.ndarray = None


class Report(NamedTuple):
    """The states that a survivor can restore.

    generation   how many times ranks were lost before these states were kept
    rank, size   the survivor's rank and the number of ranks, before the death
    sharded      True if ranks hold state that no other rank holds
    mine         the steps for which the survivor has its own state
    theirs       the steps for which the survivor has its left neighbour's complete state
    divided      True if the model's tensors are divided over ranks"""

    generation: int
    rank: int
    size: int
    sharded: bool
    mine: list
    theirs: list
    divided: bool = False


class Buddies:
    """The copies that one rank keeps. Each rank of the transport t makes a Buddies object. All
    ranks call the methods together.

    objects     {name: object with state_dict()}; it must have "model", and may have "optimizer"
    exposed_s   seconds in which save() waited for other ranks
    copied_s    seconds in which save() copied the rank's own state"""

    def __init__(self, t, objects, generation=0):
        self.t, self.objects, self.generation = t, objects, generation
        self.left, self.right = (t.rank - 1) % t.size, (t.rank + 1) % t.size
        self.background = Background(t)
        self.mine, self.theirs = {}, {}  # {step: Copy}
        self.live = None  # (step, numbers): the objects are at this step, but not copied yet
        self.job = None  # the background job that sends shards
        self.divided = divided.is_divided(objects["model"])
        self.sharded = self.divided or any(not r.whole for *_, r in regions.arrays_of(
            objects["model"], objects.get("optimizer")))
        self.exposed_s = self.copied_s = 0.0

    def save(self, step):
        """Copies the state of the objects. All ranks must call save() at the beginning of
        `step`."""
        self.settle()
        start = self.t.time()
        shard, common, numbers = _parts(self.t, self.objects)
        self.live = step, objects.pack(numbers)
        theirs, n_bytes = self._swap_numbers(_n_bytes(numbers["shard"]))
        if not self.sharded:  # then every rank has all arrays, and the buddy needs only `numbers`
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
        """Sends this rank's numbers to its buddy. Returns (a Copy with the left neighbour's
        numbers, the number of bytes of that neighbour's shard)."""
        t, (_, numbers) = self.t, self.live
        sizes = np.array([numbers.nbytes, shard_bytes], np.int64)
        if t.size == 1:
            return Copy(numbers), 0
        with t.named("buddy numbers"):
            theirs = t.sendrecv(sizes, self.right, np.empty_like(sizes), self.left)
            room = np.empty(theirs[0], np.uint8)
            return Copy(t.sendrecv(numbers, self.right, room, self.left)), int(theirs[1])

    def settle(self):
        """Waits until the shards have been sent and received."""
        job, self.job = self.job, None
        if job is not None:
            start = self.t.time()
            job.wait()
            self.exposed_s += self.t.time() - start

    def report(self):
        """Returns the Report of this rank. Call report() after a death, when all running calls have
        ended."""
        # this rank's send may have failed, although the left neighbour's shard has arrived
        with contextlib.suppress(Exception):
            self.settle()
        mine = [*self.mine, *([self.live[0]] if self.live else ())]
        theirs = [step for step, copy in self.theirs.items() if copy.shard is not None]
        return Report(self.generation, self.t.rank, self.t.size, self.sharded, mine, theirs,
                      self.divided)

    def let_go(self, step=None):
        """Drops the objects to free memory. step: the step that all ranks will restore, or None. If
        the objects have the state of this step, and there is no copy of this state, copies it
        first."""
        if self.live and self.live[0] == step and step not in self.mine:
            shard, common, _ = _parts(self.t, self.objects)
            self.mine[step] = Copy(self.live[1], _copy(shard), _copy(common))
        self.objects = self.live = None

    def n_bytes(self):
        """Returns the number of bytes of this rank's copies, without the dicts `numbers`."""
        copies = [*self.mine.values(), *self.theirs.values()]
        return sum(a.nbytes for c in copies for a in (c.shard, c.common) if a is not None)


def _send(t, buddies, shard, room, theirs):
    """Sends this rank's shard to the right neighbour, and receives the left neighbour's shard into
    `room`. Runs in the background."""
    with t.named("buddy shard"):
        incoming = t.irecv(room, buddies.left)
        outgoing = t.isend(shard, buddies.right)
        incoming.wait()
        theirs.shard = room  # this shard has arrived, even if this rank's own send fails
        outgoing.wait()


def shard_bytes(model, optimizer=None):
    """Returns S: the number of bytes of state that only this rank holds."""
    return sum((r.end - r.first) * array.dtype.itemsize
               for _, array, r in regions.arrays_of(model, optimizer) if not r.whole)


# -- the state of a rank


def _parts(t, named):
    """Returns (shard, common, numbers). shard and common are lists of (key, first, end, array). The
    array holds the elements [first, end) of the tensor named `key` (snapshot/regions.py). The
    arrays are not copied. `numbers` is a dict with the rest of the state. Raises TypeError if
    another rank cannot keep the state of an object."""
    model, optimizer, others = _sorted_out(named)
    in_parts = divided.is_divided(model)
    if uneven := [key for key, it in others.items() if hasattr(it, "rows")]:
        raise TypeError(f"rank {t.rank}: each rank has its own rows of {', '.join(uneven)}. No "
                        "other rank keeps a copy of these rows, so use minidl run --restarts "
                        "instead of --heal")
    if in_parts and isinstance(model, Compressed):
        raise TypeError(f"rank {t.rank}: no copy of the residuals is kept for a divided model "
                        "with compression. Train without compression, or without --heal")
    shard, common, buffers = [], [], {}
    for key, array, r in regions.arrays_of(model, optimizer):
        # Buffers are small. Each rank has its own buffers, and rank 0's buffers are restored.
        if key.startswith("buffer/"):
            buffers[key] = backend.to_device(r.of(array), "cpu").copy()
        elif r.first < r.end:
            kind = common if r.whole and not in_parts else shard
            kind.append((key, r.first, r.end, r.of(array)))
    for entries in (shard, common):  # the largest dtypes first, so that all arrays are aligned
        entries.sort(key=lambda entry: -entry[3].dtype.itemsize)
    # In a snapshot only rank 0 writes `body`. Here every rank takes `body`, because rank 0 may be
    # lost.
    taken = snapshot.take(t, 0, 1, model, optimizer, others, gather=False)
    return shard, common, {"part": taken.part, "body": taken.body, "buffers": buffers,
                           "shard": _holds(shard), "common": _holds(common)}


def _sorted_out(named):
    """Returns (model, optimizer or None, {name: other object})."""
    others = {key: it for key, it in named.items() if key not in ("model", "optimizer")}
    return named["model"], named.get("optimizer"), others


def _holds(entries):
    return [(key, first, end, array.dtype) for key, first, end, array in entries]


def _n_bytes(holds):
    return sum((end - first) * dtype.itemsize for _, first, end, dtype in holds)


def _room(n_bytes, rooms):
    """Returns a 1-d array of n_bytes bytes, with undefined values. rooms: a list of arrays that are
    no longer used. If one of them has the right size, removes it from the list and returns it.
    Otherwise returns a new array."""
    fits = [i for i, room in enumerate(rooms) if room.nbytes == n_bytes]
    return rooms.pop(fits[0]) if fits else np.empty(n_bytes, np.uint8)


def _copy(entries, rooms=()):
    """Copies the elements of all entries, one entry after another, into one 1-d array of bytes.
    Returns this array. entries: a list as _parts() returns it. rooms: arrays to use again, as in
    _room()."""
    holds = _holds(entries)
    flat = _room(_n_bytes(holds), rooms)
    for (*_, array), view in zip(entries, _views(flat, holds).values(), strict=True):
        view[...] = backend.to_device(array, "cpu")
    return flat


def _views(flat, holds):
    """Returns {"key/first": 1-d array}. Each array is a view of a part of `flat`, which _copy() has
    made. holds: a list of (key, first, end, dtype), one for each array, in the order of the
    bytes."""
    views, at = {}, 0
    for key, first, end, dtype in holds:
        views[f"{key}/{first}"] = flat[at:at + (end - first) * dtype.itemsize].view(dtype)
        at += (end - first) * dtype.itemsize
    return views


# -- choosing a state, and restoring it


def choose(reports):
    """Returns (generation, step) of the newest state that the survivors have together. Returns None
    if there is no such state. This happens if a rank with a shard and the rank's buddy are both
    lost, or if a divided model now has another number of ranks.

    reports: for each rank a list of Reports. The list is empty for a new process. It has two
    Reports if a second rank died while the ranks still made new copies of the state after the first
    death."""
    for generation in sorted({r.generation for each in reports for r in each}, reverse=True):
        here = [r for each in reports for r in each if r.generation == generation]
        size, alive = here[0].size, {r.rank: r for r in here}
        if here[0].divided and len(reports) != size:
            continue  # the parts of a divided model do not fit on another number of ranks
        steps = set.intersection(*(set(r.mine) for r in here))
        for lost in set(range(size)) - set(alive):
            buddy = alive.get((lost + 1) % size)
            if buddy or here[0].sharded:
                steps &= set(buddy.theirs if buddy else ())
        if steps:
            return generation, max(steps)
    return None


def why_nothing(reports):
    """Returns a sentence that says why choose() finds no state."""
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
    """Puts the chosen state into the new objects `fresh`, which were made on t. All ranks must call
    restore().

    buddies: this rank's Buddies of the chosen generation, or None on a new process. chosen: the
    result of choose(). All ranks get the numbers of all old ranks. A shard or the common state is
    sent to a rank only if the rank needs it and does not have it."""
    generation, step = chosen
    # If the model is divided, this rank gets its whole state from the old rank with the same
    # number.
    in_parts = divided.is_divided(fresh["model"])
    here = {r.rank: rank for rank, each in enumerate(reports) for r in each
            if r.generation == generation}
    size = next(r.size for each in reports for r in each if r.generation == generation)
    # {old rank: the rank that holds its copy}
    holders = {(old - 1) % size: rank for old, rank in here.items()} | here
    flats, given = {}, {}
    if buddies is not None:
        copies = {buddies.left: buddies.theirs.get(step), buddies.t.rank: buddies.mine[step]}
        flats = {old: copy.shard for old, copy in copies.items()
                 if copy is not None and copy.shard is not None}
        flats["common"] = copies[buddies.t.rank].common
        given = {old: copies[old].numbers for old, rank in holders.items() if rank == t.rank}
    with t.named("restore"):
        given = {old: it for each in objects.all_gather(t, given) for old, it in each.items()}
        # {old rank: its numbers}. A rank is missing if it died together with its buddy. This can
        # happen only without shards.
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
    """Fills the arrays of this rank. targets: a list of (key, array, Region), the regions to fill.
    values: {"key/first": elements}, from the old rank that had the same rank number."""
    for key, array, region in targets:
        if region.first < region.end:
            was = values[f"{key}/{region.first}"].reshape(-1)
            region.put(array, backend.to_device(was, backend.device_of(array)))


def _fetch(t, flats, holds, holders, needed):
    """Sends and receives shards and the common state. After the call `flats` has every name in
    `needed`. All ranks must call _fetch(). flats: {name: flat bytes} on this rank. The name of a
    shard is the number of its old rank. The name of the common state is "common". holds: {name:
    list of (key, first, end, dtype)}. holders: {name: the rank that sends these bytes}."""
    wanted = objects.all_gather(t, [name for name in needed if name not in flats])
    for name, holder in holders.items():
        for rank in range(t.size):
            if name in wanted[rank] and t.rank == holder:
                t.send(flats[name], rank)
            elif name in wanted[rank] and t.rank == rank:
                flats[name] = t.recv(np.empty(_n_bytes(holds[name]), np.uint8), holder)


def _overlaps(holds, targets):
    """Returns True if an array in `holds` has elements that are also in a target. holds: a list of
    (key, first, end, dtype). targets: a list of (key, array, Region)."""
    wanted = {}
    for key, _, r in targets:
        wanted.setdefault(key, []).append((r.first, r.end))
    return any(max(first, a) < min(end, b)
               for key, first, end, _ in holds for a, b in wanted.get(key, ()))
