"""What a log is: partitions, to whose ends records are written and that are read from any offset.

The plain form, a list of lists: minidl/plain/stream.py. Here: the interface of logs in folders and
on servers, which forget their oldest records.

    partition 0    | 0 | 1 | 2 | 3 | 4 | 5 |   <- append          a record: bytes, and the event's
    partition 1    . . | 2 | 3 | 4 |           <- append          time in ms
                   deleted  oldest = 2, newest = 5: what the next record will get

Within a partition records have an order, between partitions none; who must see two records in
their order writes them to one partition (by a hash of a key). Reading changes nothing, so any
number of readers may read, each as often as it wants. A log forgets its oldest records, by age or
size. A reader that comes too late must hear of it: `Gone`, never the oldest record that is left.

Source: Kreps et al. 2011 (NetDB), Kafka.   Test: tests/data/stream/test_folder.py
Tutorial: tutorials/24_stream.py
Used by: folder.py, redis.py, kafka.py, source.py, join.py
"""

import json
from typing import NamedTuple

import numpy as np

SCAN = 4096  # records of a read of at_time()
MOST_PARTITIONS = 1 << 20


class Gone(LookupError):
    """A partition has no such offset any more, or lost it."""


class Records(NamedTuple):
    """Some records of a partition, in an order of their reader's.

    offsets, times   (n,) int64; times in ms
    values           n bytes objects, or an array of n structured elements (Source's dtype)"""

    partition: int
    offsets: np.ndarray
    times: np.ndarray
    values: list

    @property
    def n(self):
        return len(self.offsets)

    def pick(self, which):
        """Those at the places `which`: a slice, or an array of numbers."""
        values = self.values
        if isinstance(values, np.ndarray) or isinstance(which, slice):
            values = values[which]
        else:
            values = [values[i] for i in which.tolist()]
        return Records(self.partition, self.offsets[which], self.times[which], values)

    def then(self, more):
        """These, and `more` of the same partition after them."""
        if not self.n or not more.n:
            return more if not self.n else self
        values = (self.values + more.values if isinstance(self.values, list)
                  else np.concatenate([self.values, more.values]))
        return Records(self.partition, np.concatenate([self.offsets, more.offsets]),
                       np.concatenate([self.times, more.times]), values)

    def typed(self, dtype):
        """The values as an array; each record is one element of dtype. None: as they are."""
        if dtype is None:
            return self
        dtype = np.dtype(dtype)
        data = b"".join(self.values)
        if len(data) != self.n * dtype.itemsize:
            sizes = sorted({len(value) for value in self.values})
            raise ValueError(f"partition {self.partition}: wanted records of {dtype.itemsize} bytes"
                             f" each, as {dtype} has, from offset {self.offsets[0]} on; got "
                             f"{sizes[0]} to {sizes[-1]}")
        return self._replace(values=np.frombuffer(data, dtype))


def described(name, text):
    """Returns (partitions, id) of what a log says about itself, JSON text; ValueError if it is
    damaged."""
    try:
        about = json.loads(text)
        partitions, mark = about["partitions"], about.get("id")
        if type(partitions) is not int or not 0 < partitions <= MOST_PARTITIONS:
            raise ValueError(f"{partitions!r:.40} partitions")
        if not isinstance(mark, (str, type(None))):
            raise ValueError(f"the id {mark!r:.40}")
        return partitions, mark
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{name} does not describe a log, it was altered: {error}") from None


def none_of(partition):
    """No records."""
    return Records(partition, np.empty(0, np.int64), np.empty(0, np.int64), [])


class Log:
    """The interface of all engines. partitions: how many there are; id: drawn when the log was
    made, so that one made anew in its place is not taken for it."""

    partitions: int
    id: str | None = None

    def append(self, partition, values, times):
        """Write records to the end; returns the first one's offset. On return they survive the end
        of this process. values: bytes objects; times: ms, one for each."""
        raise NotImplementedError

    def read(self, partition, offset, n):
        """At most n Records from `offset` on; fewer, or none, where more are not there yet.
        Gone if `offset` is not between the oldest and the newest."""
        raise NotImplementedError

    def oldest(self, partition):
        """The first offset that is still there; the newest if there is no record."""
        raise NotImplementedError

    def newest(self, partition):
        """The offset that the next record will get."""
        raise NotImplementedError

    def at_time(self, partition, time):
        """The first offset whose record has this time or a later one; the newest if none has.
        Reads all before it: times need not be in order."""
        offset = self.oldest(partition)
        while (found := self.read(partition, offset, SCAN)).n:
            late = np.flatnonzero(found.times >= time)
            if len(late):
                return int(found.offsets[late[0]])
            offset = int(found.offsets[-1]) + 1
        return offset

    def close(self):
        """Give back files and connections."""

    def known(self, name, partition):
        """The partition's number; ValueError if there is no such."""
        if not 0 <= partition < self.partitions:
            raise ValueError(f"{name} has partitions 0 to {self.partitions - 1}; wanted "
                             f"{partition}")
        return partition

    def as_many(self, partition, values, times):
        """ValueError unless each record has its time."""
        if len(times) != len(values):
            raise ValueError(f"partition {partition}: {len(values)} records want as many times, "
                             f"got {len(times)}")

    def same_partitions(self, name, wanted):
        if wanted not in (None, self.partitions):
            raise ValueError(f"the log in {name} has {self.partitions} partitions; wanted "
                             f"{wanted}. Records would change their partition: copy them")

    def check(self, partition, offset, oldest, newest):
        """Raise Gone unless the partition has, or will have, this offset."""
        if offset < oldest:
            raise Gone(f"partition {partition}: offset {offset} was deleted; the oldest is "
                       f"{oldest}. Keep records for longer than a run is down, or begin anew at "
                       f"the oldest and accept that {oldest - offset} records are never seen")
        if offset > newest:
            raise Gone(f"partition {partition}: wanted offset {offset}, and the log ends at "
                       f"{newest}: it has lost records that were read before. A broker that was "
                       "restarted without its disk?")
