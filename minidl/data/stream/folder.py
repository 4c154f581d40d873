"""A log in a folder: files of records, and index files with their lengths and checksums.

    clicks/log.json                               {"partitions": 2, "id": "9f03..."}
    clicks/0/00000000000000000000.data            record | record | record | ...
    clicks/0/00000000000000000000.index           end, time, length, CRC-32 | ...   24 bytes each
    clicks/0/00000000000000065536.data            the next segment, named by its first offset

Entry k of an index describes record k of its segment. So one multiplication finds the entry of any
offset, and two system calls read many records. An entry is written after its record. So if a writer
is killed, all records that have an entry are complete. After these records there may be a part of a
record, and the next writer overwrites this part. So a reader never sees half a record, and it needs
no lock. A process must hold the partition's lock to write. After a power failure an entry may exist
without its record. The checksum detects this, and the next writer removes such entries from the
end. `sync=True` prevents this case: append() then waits for the disk. `delete_before` deletes old
records, in whole segments.

Source: Kafka's log, Kreps et al. 2011 (NetDB).   Test: tests/data/stream/test_folder.py
Measured: benchmarks/bench_stream.py   Tutorial: tutorials/24_stream.py, train_clicks.py
"""

import contextlib
import fcntl
import json
import os
import re
import secrets
import threading
import zlib
from pathlib import Path

import numpy as np

from minidl.data.stream.log import SCAN, Log, Records, described, none_of

ENTRY = np.dtype([("end", "<u8"), ("time", "<i8"), ("length", "<u4"), ("crc", "<u4")])
RANGE = 2**63 - 1  # the largest time and the largest offset
INDEX = re.compile(r"\d{20}\.index")


class FolderLog(Log):
    """A log in the folder `path`.

    partitions:    the number of partitions of a new log, or None to open a log that exists.
    segment_bytes: a new segment begins when the last segment has this many bytes.
    sync:          if True, append() waits until the records are on the disk."""

    def __init__(self, path, partitions=None, segment_bytes=64 << 20, sync=False):
        self.path, self.segment_bytes, self.sync = Path(path), segment_bytes, sync
        self._files, self._lock, self._whole = {}, threading.Lock(), set()
        about = self.path / "log.json"
        if not about.exists():
            if partitions is None or partitions < 1:
                raise ValueError(f"there is no log in {path}. Pass partitions=N for a new log, "
                                 f"with N >= 1; got partitions={partitions}")
            for p in range(partitions):
                (self.path / str(p)).mkdir(parents=True, exist_ok=True)
            mine = self.path / f".{os.getpid()}-{secrets.token_hex(4)}.json"
            mine.write_text(json.dumps({"partitions": partitions, "id": secrets.token_hex(8)}))
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(mine, about)
            mine.unlink()
        self.partitions, self.id = described(about, about.read_bytes())
        self.same_partitions(path, partitions)

    def append(self, partition, values, times):
        times = np.asarray(times, np.int64)
        self.as_many(partition, values, times)
        with self._lock, self._only_writer(partition):
            base, n, end = self._end(partition)
            if n and end >= self.segment_bytes:
                base, n, end = base + n, 0, 0
            entries = np.empty(len(values), ENTRY)
            entries["length"] = np.fromiter(map(len, values), np.uint32, len(values))
            entries["end"] = end + np.cumsum(entries["length"], dtype=np.uint64)
            entries["time"] = times
            entries["crc"] = _checksums(values, entries)
            try:
                for kind, at, content in (("data", end, b"".join(values)),
                                          ("index", n * ENTRY.itemsize, entries.tobytes())):
                    file = self._file(partition, base, kind, os.O_RDWR | os.O_CREAT)
                    _write(file, content, at)
                    if self.sync:
                        os.fsync(file)
            except OSError as error:
                raise self._unwritten(partition, base, n, len(values), error) from error
        return base + n

    def _unwritten(self, partition, base, n, wanted, error):
        """Returns the OSError for an append that failed. If the entry of a record is written,
        readers can see the record. So complete entries are kept, and the error tells their number.
        An incomplete entry is removed."""
        done = 0
        with contextlib.suppress(FileNotFoundError):  # a new segment has no index yet
            done = max(self._n(partition, base) - n, 0)
        if done < wanted:  # the index may end with a part of an entry
            with contextlib.suppress(OSError):
                os.truncate(self._path(partition, base, "index"), (n + done) * ENTRY.itemsize)
        words = f"the first {done} of {wanted} records were" if done else "no record was"
        on_disk = ", but perhaps not on the disk" if done else ""
        return OSError(error.errno, f"partition {partition}: {words} appended, from offset "
                       f"{base + n} on{on_disk}: {error.strerror or error}")

    def read(self, partition, offset, n):
        found, bases = none_of(partition), self._segments(partition)
        if offset < bases[0]:
            self.check(partition, offset, bases[0], RANGE)
        while found.n < n:
            at = offset + found.n
            s = int(np.searchsorted(bases, at, side="right")) - 1
            try:
                part = self._read(partition, bases[s], at, n - found.n)
            except FileNotFoundError:  # another process has deleted the segment
                self.check(partition, offset, self._segments(partition)[0], RANGE)
                raise self._altered(partition, bases[s], at) from None
            found = found.then(part)
            last = bases[s] == bases[-1]
            if not part.n and not last:
                self.check(partition, offset, self._segments(partition)[0], RANGE)
                raise ValueError(f"{self.path}: partition {partition} has no offset {at}, but has "
                                 f"a segment that begins at {bases[s + 1]}. A file was altered")
            if last:
                break
        if not found.n and offset > bases[-1]:
            self.check(partition, offset, 0, self.newest(partition))
        return found

    def oldest(self, partition):
        return self._segments(partition)[0]

    def newest(self, partition):
        base = self._segments(partition)[-1]
        return base + self._n(partition, base)

    def at_time(self, partition, time):
        for base in self._segments(partition):
            first = 0  # reads the entries in parts, because there may be millions
            while len(entries := self._entries(partition, base, first, SCAN)):
                late = np.flatnonzero(entries["time"] >= time)
                if len(late):
                    return base + first + int(late[0])
                first += len(entries)
        return self.newest(partition)

    def delete_before(self, partition, offset):
        """Deletes the segments that end before `offset`, but never the last segment. Returns the
        oldest offset that is left. To delete by time: delete_before(p, log.at_time(p, time))."""
        bases = self._segments(partition)
        for base, following in zip(bases, bases[1:], strict=False):
            if following > offset:
                break
            # The index is deleted first, because a segment without an index is never read.
            for kind in ("index", "data"):
                os.unlink(self._path(partition, base, kind))
        for key in [k for k in list(self._files) if k[0] == partition and k[1] != "lock"]:
            self._files.pop(key, None)
        return self.oldest(partition)

    def close(self):
        self._files.clear()

    # -- files

    def _path(self, partition, base, kind):
        return f"{self.path}/{partition}/{base:020d}.{kind}"

    def _file(self, partition, base, kind, flags=os.O_RDONLY):
        """Returns the open file of a segment. Keeps only one file of each kind open, because a
        reader may visit any number of segments."""
        key = partition, kind, flags
        kept = self._files.get(key)
        if kept is None or kept[0] != base:
            path = self._path(partition, base, kind)
            kept = self._files[key] = base, _Open(os.open(path, flags | os.O_CLOEXEC, 0o666))
        return kept[1]

    def _segments(self, partition):
        """Returns the first offsets of all segments, in order. Returns [0] if there is no segment.
        """
        folder = self.path / str(self.known(self.path, partition))
        return sorted(int(name[:-6]) for name in os.listdir(folder)
                      if INDEX.fullmatch(name)) or [0]

    def _n(self, partition, base):
        """Returns how many complete entries a segment has."""
        try:
            return os.stat(self._path(partition, base, "index")).st_size // ENTRY.itemsize
        except FileNotFoundError:
            if base:
                raise
            return 0  # no record has been appended yet

    def _entries(self, partition, base, first, n):
        n = min(n, self._n(partition, base) - first)
        if n <= 0:
            return np.empty(0, ENTRY)
        index = self._file(partition, base, "index")
        return np.frombuffer(os.pread(index, n * ENTRY.itemsize, first * ENTRY.itemsize), ENTRY)

    def _read(self, partition, base, offset, n):
        entries = self._entries(partition, base, offset - base, n)
        if not len(entries):
            return none_of(partition)
        ends, lengths = entries["end"].astype(np.int64), entries["length"].astype(np.int64)
        begin, file = int(ends[0] - lengths[0]), self._file(partition, base, "data")
        size = os.fstat(file).st_size
        wrong = (ends - lengths < 0) | (ends > size)  # checked before memory is allocated
        wrong[1:] |= ends[1:] - lengths[1:] != ends[:-1]
        if wrong.any():
            raise self._altered(partition, base, offset + int(wrong.argmax()))
        data = os.pread(file, int(ends[-1]) - begin, begin)
        begins, ends = (ends - lengths - begin).tolist(), (ends - begin).tolist()
        values = [data[b:e] for b, e in zip(begins, ends, strict=True)]
        bad = np.flatnonzero(_checksums(values, entries) != entries["crc"])
        if len(bad):
            raise self._altered(partition, base, offset + bad[0])
        offsets = np.arange(offset, offset + len(values))
        return Records(partition, offsets, entries["time"].astype(np.int64), values)

    def _altered(self, partition, base, offset):
        return ValueError(f"partition {partition}: the record at offset {offset} is not what was "
                          f"written: {self._path(partition, base, 'data')} was altered, or lost "
                          "its end in a power failure. After a power failure the next append() "
                          "removes the damaged records")

    def _end(self, partition):
        """Returns (first offset, number of entries, bytes) of the last segment. The first call
        removes the last entries if their records are damaged."""
        base = self._segments(partition)[-1]
        n = self._n(partition, base)
        # Only the first call checks the end of the segment, because an earlier process may have
        # written the end.
        if partition not in self._whole:
            while n:
                with contextlib.suppress(ValueError, FileNotFoundError):
                    self._read(partition, base, base + n - 1, 1)
                    break
                n -= 1
                os.truncate(self._path(partition, base, "index"), n * ENTRY.itemsize)
            self._whole.add(partition)
        last = self._entries(partition, base, n - 1, 1) if n else ()
        return base, n, int(last[0]["end"]) if n else 0

    @contextlib.contextmanager
    def _only_writer(self, partition):
        """A `with` block that holds the partition's lock. No other process can then write to the
        partition."""
        key = partition, "lock"
        if key not in self._files:
            self._files[key] = _Open(os.open(self.path / str(partition) / "lock",
                                             os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        fcntl.flock(self._files[key], fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._files[key], fcntl.LOCK_UN)


class _Open(int):
    """A file descriptor. The file is closed when no thread uses this object any longer."""

    def __del__(self, close=os.close):
        close(self)


def _checksums(values, entries):
    """Returns the CRC-32 of each record, (n,) uint32. values: the records, bytes objects. entries:
    their entries in the index. A CRC-32 also covers the time and the end in the entry. So it also
    detects a damaged entry."""
    places = entries["time"].view(np.uint64) ^ entries["end"]
    places = ((places ^ places >> np.uint64(32)) & np.uint64(0xFFFFFFFF)).tolist()
    crcs = map(zlib.crc32, values, places)
    return np.fromiter(crcs, np.uint32, len(values))


def _write(file, content, at):
    """Writes all of `content` at the position `at`. A single pwrite() may write only a part."""
    rest = memoryview(content)
    while rest:
        done = os.pwrite(file, rest, at)
        rest, at = rest[done:], at + done
