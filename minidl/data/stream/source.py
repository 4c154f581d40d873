"""Makes batches from a log. Uses every record exactly once, on any number of ranks.

The plain form: minidl/plain/stream.py. This file adds blocks that are shuffled, threads that read
ahead, a snapshot that keeps the offsets, and a restart on another number of ranks.

    partition 0   | block 0: 2 0 3 1 | block 1: 5 7 4 6 | ...     a step takes per_partition records
    partition 1   | block 0: 1 3 2 0 | block 1: 6 4 ...           of each partition, in this order
                                            ^
    src = Source(log, t, per_partition=16)      state of a partition: (first, n, i). Its block has n
    for parts, total in src:                    records from offset `first` on; i of them are used
        for part in parts: ...                  a Part for each partition of this rank

Rank p % size reads partition p. So each rank knows its partitions without a message, and the
records of a step do not depend on the number of ranks. The order of a block is drawn from (seed,
partition, first). So the shuffle can be repeated without any stored state. A block ends after a
number of records, or by event time (`block_ms`). A clock never ends a block, because a second run
must make the same blocks.

Exactly once: the snapshot holds first, n and i of each partition together with the weights. With
two separate writes, a crash can come between the two writes. If first, n and i are written first,
the crash loses records. If the weights are written first, some records are used twice. Save between
two steps:

    snapshot.save("runs", step, t, model=model, optimizer=optimizer, source=src)

Threads read `ahead` blocks of each partition in advance and then wait. So a slow trainer holds only
a bounded part of the log in memory.
Source: Kreps et al. 2011 (the reader holds the offsets); Chandy & Lamport 1985 (consistent cuts).
Test: tests/data/stream/test_source.py, test_kills.py   Tutorial: tutorials/24_stream.py
"""

import math
import threading
import time

import numpy as np

from minidl.comm import objects
from minidl.comm.labels import about
from minidl.data.prefetch import prefetch
from minidl.data.stream.log import none_of
from minidl.random import Generator

POLL_S = 0.005  # seconds between two reads of a partition without a new record


class Part:
    """The records of one partition in a step. A Part has the fields of Records, and n, the number
    of records. position: the sum first + i after these records. `first` and `i` are in the state of
    the partition (see the picture at the top of this file). The position only grows. So a parameter
    server can store the position, and drop a push that comes twice."""

    def __init__(self, records, position):
        self.partition, self.offsets, self.times, self.values = records
        self.n, self.position = records.n, position


class Steps:
    """The base class of Source and Join, which read a log step by step. They cannot be a
    data.Pipeline, because a Pipeline needs the elements 0 to n - 1. But a log has no end, and
    deletes its oldest records. A subclass defines:

    _open(stop)         returns its readers, one for each partition of this rank
    _step(readers, at)  does a step on this rank. Returns (parts, n, more, time). n: the number of
                        records. more: True if more records may come. time: the time of the next
                        event, or inf if there is no event. at: the smallest `time` that any rank
                        returned in the previous step. In the first step `at` is None. It is also
                        None if every `time` was inf
    _same()             returns the settings that must match when a run resumes"""

    def __init__(self, t, partitions, readers):
        self.readers = tuple(range(t.size) if readers is None else readers)
        self.rank, self.partitions = t.rank, partitions
        self.t = t.subgroup(self.readers)
        self.mine = [] if self.t is None else list(range(self.t.rank, partitions, self.t.size))

    def __iter__(self):
        if self.t is None:
            raise ValueError(f"rank {self.rank} reads no stream: the readers are the ranks "
                             f"{self.readers}. Iterate only on these ranks")
        stop = threading.Event()
        readers = self._open(stop)
        try:
            at = None
            while True:
                parts, mine, fault = [], (0, False, math.inf), ""
                try:
                    parts, *mine = self._step(readers, at)
                except Exception as error:  # the other ranks get this error by all_gather below
                    fault, cause = f"{type(error).__name__}: {error}", error
                with about("how many records there are, and whether a rank could not read"):
                    said = objects.all_gather(self.t, (*mine, fault))
                if faults := [text for *_, text in said if text]:
                    kind, cause = (type(cause), cause) if fault else (RuntimeError, None)
                    raise kind(f"rank {self.rank}: {len(faults)} of {self.t.size} ranks could not "
                               f"read the stream. {faults[0]}") from cause
                n, more, times, _ = zip(*said, strict=True)
                at = None if min(times) == math.inf else min(times)
                if sum(n):
                    yield parts, sum(n)
                elif not any(more):
                    return
        finally:
            stop.set()
            # The traceback of an error may keep the readers alive for long. So the readers are
            # closed now.
            for reader in readers:
                reader.close()

    def state_dict(self):
        """Returns the settings that must match when a run resumes. rows() has the position."""
        return {"partitions": self.partitions, **self._same()}

    def load_state_dict(self, state):
        """Raises ValueError if a setting differs from the saved setting."""
        here = self.state_dict()
        differs = [f"{k} {state.get(k)}, here {here[k]}" for k in here if state.get(k) != here[k]]
        if differs:
            raise ValueError(f"rank {self.rank}: the snapshot's stream has {'; '.join(differs)}. "
                             "With other settings the saved position has no meaning. Resume with "
                             "the same settings")


class Source(Steps):
    """Yields ([Part], number of records of all ranks). Each step is a collective: all readers must
    iterate.

    per_partition  how many records of each partition a step has. There are fewer if the partition
                   ends or is idle
    block          how many records are shuffled together. With 1, the records stay in order
    block_ms       the longest block, in ms of event time. A record that is block_ms or more later
                   than the first record of a block begins a new block. None means no limit
    seed           the seed of the shuffle
    dtype          makes the values an array: each record is one element of this dtype
    readers        the ranks of t that read; the default is all ranks. The other ranks only save and
                   load the state
    start          the first offset of each partition; the default is the oldest offset
    until          the offset at which each partition ends. Its last block also ends there. If
                   None, there is no end
    idle_s         if None, a step waits for every partition. If a number, a step does not wait for
                   a partition that had no new block for this many seconds. Then the records of a
                   step depend on the times of arrival
    ahead          how many blocks of each partition are read in advance"""

    def __init__(self, log, t, per_partition=16, block=256, seed=0, dtype=None, readers=None,
                 start=None, until=None, block_ms=None, idle_s=None, ahead=2):
        super().__init__(t, log.partitions, readers)
        if min(per_partition, block) < 1:
            raise ValueError(f"rank {t.rank}: per_partition and block must be at least 1, got "
                             f"per_partition={per_partition} and block={block}")
        self.log, self.per_partition, self.block, self.seed = log, per_partition, block, seed
        self.dtype, self.until, self.block_ms = dtype, until, block_ms
        self.idle_s, self.ahead = idle_s, ahead
        self.place = {p: (log.oldest(p) if start is None else start[p], 0, 0) for p in self.mine}

    def _same(self):
        return {"log": self.log.id, "block": self.block, "block_ms": self.block_ms,
                "seed": self.seed}

    def rows(self):
        """Returns {"place": (k, 4) int64}. A row is (partition, first, n, i), one for each of this
        rank's partitions."""
        rows = [(p, *place) for p, place in sorted(self.place.items())]
        return {"place": np.array(rows, np.int64).reshape(-1, 4)}

    def load_rows(self, rows):
        """Loads the rows of this rank's partitions. rows: the rows() of all ranks, joined."""
        for p, *place in rows["place"].tolist():
            if p in self.place:
                self.place[p] = tuple(place)

    def _open(self, stop):
        return [_Blocks(self, p, stop) for p in self.mine]

    def _step(self, readers, at):
        parts, more = [], False
        for blocks in readers:
            records, place = blocks.take(self.per_partition, self.place[blocks.partition])
            self.place[blocks.partition] = place
            more |= not blocks.ended
            if records.n:
                parts.append(Part(records, place[0] + place[2]))
        return parts, sum(part.n for part in parts), more, math.inf


class _Blocks:
    """The permuted blocks of a partition, read ahead by a thread."""

    def __init__(self, source, partition, stop):
        self.source, self.partition, self.ended = source, partition, False
        first, n, self.used = source.place[partition]
        blocks = closed_blocks(
            source.log, partition, first, n, source.block, source.block_ms,
            source.until and source.until[partition], source.idle_s, stop)
        self.blocks = prefetch(blocks, self._permuted, source.ahead)
        self.first, self.records, self.next = first, none_of(partition), first

    def _permuted(self, block):
        first, records = block
        order = Generator(self.source.seed, self.partition)
        # Each block has its own random numbers.
        order.set_state((self.source.seed, self.partition, first << 32))
        return records.typed(self.source.dtype).pick(order.permutation(records.n))

    def close(self):
        self.blocks.close()

    def take(self, n, place):
        """Returns (the next n records, the state after these records). There are fewer records if
        the partition ends or is idle. The state of a partition is (first, n, i). place: the state
        before these records."""
        taken = none_of(self.partition)
        while taken.n < n and not self.ended:
            if self.used >= self.records.n:
                (first, _), records = next(self.blocks, ((None, None), None))
                self.ended = first is None
                if self.ended or not records.n:
                    break  # the partition has ended or is idle
                self.used = place[2] if place[1] else 0  # a saved place may be inside a block
                self.first, self.records = first, records
            some = self.records.pick(slice(self.used, self.used + n - taken.n))
            taken, self.used = taken.then(some), self.used + some.n
            whole = self.used == self.records.n
            place = ((int(self.records.offsets.max()) + 1, 0, 0) if whole else
                     (self.first, self.records.n, self.used))
        return taken, place


def closed_blocks(log, partition, first, n, block, block_ms, until, idle_s, stop):
    """Yields (first offset, Records) of each block of a partition, when the block is complete. If
    no record came for idle_s seconds, the Records are empty. n: the length of the first block if an
    earlier run has begun this block, otherwise 0."""
    have = none_of(partition)
    for more in fresh(log, partition, first, block, until, idle_s, stop):
        have, idle = have.then(more), not more.n
        while closed := _closed(have, n, block, block_ms):
            yield first, have.pick(slice(closed))
            first, n = int(have.offsets[closed - 1]) + 1, 0
            have = have.pick(slice(closed, None))
        if idle:
            yield first, none_of(partition)
    if have.n and not stop.is_set():  # the last block, which ends at `until`
        if have.n < n:
            raise ValueError(f"partition {partition}: the block from offset {first} on has {n} "
                             f"records in the snapshot, but only {have.n} of these records are "
                             f"before until={until}. Pass a larger until")
        yield first, have


def _closed(have, n, block, block_ms):
    """Returns the number of records of the next block, or 0 if the block is not complete yet. have:
    the Records that were read and are in no block yet. n: the known length of the block, or 0.
    block, block_ms: as in Source."""
    if n:
        return n if have.n >= n else 0
    late = np.flatnonzero(have.times[:block] >= have.times[0] + block_ms) if (
        have.n and block_ms is not None) else ()
    return int(late[0]) if len(late) else block if have.n >= block else 0


def fresh(log, partition, at, n, until, idle_s, stop):
    """Reads a partition from offset `at` on, and waits for new records. Yields Records, each with
    at most n records. If no record came for idle_s seconds, yields empty Records. Ends at the
    offset `until`, or when the event `stop` is set."""
    since = time.monotonic()
    while not stop.is_set() and (until is None or at < until):
        records = log.read(partition, at, n if until is None else min(n, until - at))
        if records.n:
            if until is not None:  # a log may have gaps, so a read may go past `until`
                records = records.pick(slice(int(np.searchsorted(records.offsets, until))))
            at = int(records.offsets[-1]) + 1 if records.n else until
        elif idle_s is None or time.monotonic() - since <= idle_s:
            stop.wait(POLL_S)
            continue
        since = time.monotonic()
        yield records
