"""The interface of a log: partitions of records. A writer appends to the end of a partition. A
reader reads from any offset.

The plain form, a list of lists: minidl/plain/stream.py. This file has the interface of logs in
folders and on servers. Such logs delete their oldest records.

    partition 0    | 0 | 1 | 2 | 3 | 4 | 5 |   <- append          a record: bytes, and the event's
    partition 1    . . | 2 | 3 | 4 |           <- append          time in ms
                   deleted  oldest = 2, newest = 5: the offset of the next record

Records of one partition have an order. Records of different partitions have no order. If the order
of two records matters, write them to one partition, chosen by a hash of their key. Reading does not
change a log, so there may be any number of readers, and a reader may read a record again. A log
deletes its oldest records, by age or size. A reader that asks for a deleted record gets the error
`Gone`. It never gets another record instead.

Source: Kreps et al. 2011 (NetDB), Kafka.   Test: tests/data/stream/test_folder.py
Tutorial: tutorials/24_stream.py
Used by: folder.py, redis.py, kafka.py, source.py, join.py
"""

import json
from typing import NamedTuple

import numpy as np

SCAN = 4096  # records that at_time() reads in one call
MOST_PARTITIONS = 1 << 20


class Gone(LookupError):
    """The error for the offset of a record that a partition has deleted or lost."""


class Records(NamedTuple):
    """Some records of a partition, in any order.

    offsets, times   (n,) int64; times in ms
    values           a list of n bytes objects, or an array (n,) of the dtype that Source got"""

    partition: int
    offsets: np.ndarray
    times: np.ndarray
    values: list

    @property
    def n(self):
        return len(self.offsets)

    def pick(self, which):
        """Returns the Records at the positions `which`: a slice, or an array of integers."""
        values = self.values
        if isinstance(values, np.ndarray) or isinstance(which, slice):
            values = values[which]
        else:
            values = [values[i] for i in which.tolist()]
        return Records(self.partition, self.offsets[which], self.times[which], values)

    def then(self, more):
        """Returns these Records, followed by `more` Records of the same partition."""
        if not self.n or not more.n:
            return more if not self.n else self
        values = (self.values + more.values if isinstance(self.values, list)
                  else np.concatenate([self.values, more.values]))
        return Records(self.partition, np.concatenate([self.offsets, more.offsets]),
                       np.concatenate([self.times, more.times]), values)

    def typed(self, dtype):
        """Returns the Records with their values as an array (n,) of dtype. If dtype is None, the
        values do not change. Raises ValueError if the bytes of a record do not have the size of
        dtype."""
        if dtype is None:
            return self
        dtype = np.dtype(dtype)
        data = b"".join(self.values)
        if len(data) != self.n * dtype.itemsize:
            sizes = sorted({len(value) for value in self.values})
            raise ValueError(f"partition {self.partition}, from offset {self.offsets[0]} on: want "
                             f"records of {dtype.itemsize} bytes each, because {dtype} has this "
                             f"size; got {sizes[0]} to {sizes[-1]} bytes")
        return self._replace(values=np.frombuffer(data, dtype))


def described(name, text):
    """Returns (number of partitions, id) from the JSON text that describes a log. name: the log's
    name in an error message. Raises ValueError if the text is damaged."""
    try:
        about = json.loads(text)
        partitions, mark = about["partitions"], about.get("id")
        if type(partitions) is not int or not 0 < partitions <= MOST_PARTITIONS:
            raise ValueError(f"wanted 1 to {MOST_PARTITIONS} partitions; got {partitions!r:.40}")
        if not isinstance(mark, (str, type(None))):
            raise ValueError(f"wanted a text as id; got {mark!r:.40}")
        return partitions, mark
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{name} does not describe a log. The file or entry was altered: "
                         f"{error}") from None


def none_of(partition):
    """Returns Records without any record."""
    return Records(partition, np.empty(0, np.int64), np.empty(0, np.int64), [])


class Log:
    """The interface of all kinds of logs. partitions: how many partitions the log has. id: a random
    name, drawn when the log was made. A log that was deleted and made again has another id."""

    partitions: int
    id: str | None = None

    def append(self, partition, values, times):
        """Appends records. Returns the offset of the first record. When append() returns, the
        records survive the end of this process. values: bytes objects. times: in ms, one for each
        record."""
        raise NotImplementedError

    def read(self, partition, offset, n):
        """Returns at most n Records from `offset` on. There are fewer, or none, if the log has no
        more records yet. Raises Gone if `offset` is not between oldest() and newest()."""
        raise NotImplementedError

    def oldest(self, partition):
        """Returns the offset of the oldest record, or newest() if there is no record."""
        raise NotImplementedError

    def newest(self, partition):
        """Returns the offset that the next record will get."""
        raise NotImplementedError

    def at_time(self, partition, time):
        """Returns the offset of the first record that has this time or a later time. If there is no
        such record, returns newest(). Reads all records before this record, because times may be
        out of order."""
        offset = self.oldest(partition)
        while (found := self.read(partition, offset, SCAN)).n:
            late = np.flatnonzero(found.times >= time)
            if len(late):
                return int(found.offsets[late[0]])
            offset = int(found.offsets[-1]) + 1
        return offset

    def close(self):
        """Closes files and connections."""

    def known(self, name, partition):
        """Returns `partition`. Raises ValueError if there is no such partition."""
        if not 0 <= partition < self.partitions:
            raise ValueError(f"{name} has partitions 0 to {self.partitions - 1}; got "
                             f"partition {partition}")
        return partition

    def as_many(self, partition, values, times):
        """Raises ValueError unless there is one time for each record."""
        if len(times) != len(values):
            raise ValueError(f"partition {partition}: want one time for each record, got "
                             f"{len(values)} records and {len(times)} times")

    def same_partitions(self, name, wanted):
        """Raises ValueError if `wanted` is a number, but not the log's number of partitions."""
        if wanted not in (None, self.partitions):
            raise ValueError(f"the log in {name} has {self.partitions} partitions; got "
                             f"partitions={wanted}. An existing log cannot change its number of "
                             "partitions: copy its records to a new log")

    def check(self, partition, offset, oldest, newest):
        """Raises Gone unless this offset is from `oldest` to `newest`."""
        if offset < oldest:
            raise Gone(f"partition {partition}: offset {offset} was deleted; the oldest offset is "
                       f"{oldest}. Keep records for a longer time than a run can be stopped. Or "
                       f"begin again at the oldest offset, and lose {oldest - offset} records")
        if offset > newest:
            raise Gone(f"partition {partition}: wanted offset {offset}, but the log ends at "
                       f"{newest}. The log has lost records that were read before. Was a server "
                       "restarted without its disk?")
