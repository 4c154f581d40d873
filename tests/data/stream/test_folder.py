"""minidl/data/stream/folder.py: whole records only, whoever is killed; what is gone is named."""

import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from minidl.data import stream
from minidl.data.stream import FolderLog, Gone, folder
from minidl.data.stream.folder import ENTRY
from minidl.data.stream.log import SCAN
from tests.damaged import N, at_most, damaged


def values_of(first, n, size=None):
    rng = np.random.default_rng(first)
    sizes = rng.integers(0, 40, n) if size is None else np.full(n, size)
    return [b"%d:" % (first + i) + rng.bytes(s) for i, s in enumerate(sizes.tolist())]


def filled(path, n=100, partitions=2, by=7, **options):
    """A log, and the values of partition 1; record k has time 10 k."""
    log = FolderLog(path, partitions, **options)
    values = values_of(0, n)
    for first in range(0, n, by):
        some = values[first:first + by]
        assert log.append(1, some, 10 * np.arange(first, first + len(some))) == first
    return log, values


@pytest.mark.parametrize("segment_bytes", [1, 300, 64 << 20])
@pytest.mark.parametrize("sync", [False, True])
def test_any_range_is_read_as_it_was_written(tmp_path, segment_bytes, sync):
    log, values = filled(tmp_path / "log", segment_bytes=segment_bytes, sync=sync)
    for reader in (log, stream.open(f"file:{tmp_path}/log")):
        assert (reader.partitions, reader.oldest(0), reader.newest(0)) == (2, 0, 0)
        assert reader.read(0, 0, 9).n == 0
        for offset, n in [(0, 100), (0, 0), (0, 1), (6, 2), (13, 60), (99, 5), (100, 5), (95, 5)]:
            found = reader.read(1, offset, n)
            assert found.values == values[offset:offset + n]
            assert found.offsets.tolist() == list(range(offset, min(offset + n, 100)))
            assert found.times.tolist() == (10 * found.offsets).tolist()
        assert (reader.oldest(1), reader.newest(1)) == (0, 100)
        for at, first in ((-1, 0), (0, 0), (1, 1), (10, 1), (985, 99), (990, 99), (991, 100)):
            # by the index, and as logs without one look for it
            assert reader.at_time(1, at) == stream.Log.at_time(reader, 1, at) == first
    log.close()


def test_empty_records_and_empty_appends(tmp_path):
    log = FolderLog(tmp_path, 1)
    assert [log.append(0, v, [5] * len(v)) for v in ([], [b""], [], [b"", b"x"])] == [0, 0, 1, 1]
    assert log.read(0, 0, 9).values == [b"", b"", b"x"]


def test_what_retention_has_deleted_is_named(tmp_path):
    log, values = filled(tmp_path, segment_bytes=300)
    reader = FolderLog(tmp_path)
    assert reader.read(1, 0, 5).n == 5  # with its files open
    oldest = log.delete_before(1, log.at_time(1, 500))
    assert 0 < oldest <= 50 and reader.oldest(1) == oldest and log.newest(1) == 100
    assert reader.read(1, oldest, 100).values == values[oldest:]
    with pytest.raises(Gone, match=f"offset 3 was deleted; the oldest offset is {oldest}"):
        reader.read(1, 3, 5)
    assert log.delete_before(1, 10**6) < 100, "the last segment stays: it knows the next offset"
    assert log.append(1, [b"more"], [1000]) == 100


def test_a_log_that_has_lost_records_is_named(tmp_path):
    log, _ = filled(tmp_path)
    assert log.read(1, 100, 1).n == 0
    with pytest.raises(Gone, match="partition 1: wanted offset 101, but the log ends at 100"):
        log.read(1, 101, 1)


@pytest.mark.parametrize("kind, cut", [("data", 1), ("data", 40), ("index", 1), ("index", 30)])
def test_a_writer_that_broke_off_leaves_a_prefix(tmp_path, kind, cut):
    """A file without its last bytes, as a kill or a power failure leaves it."""
    log, values = filled(tmp_path)
    log.close()
    path = tmp_path / "1" / f"{0:020d}.{kind}"
    os.truncate(path, path.stat().st_size - cut)
    log = FolderLog(tmp_path)
    n = log.append(1, [b"new"], [0])
    assert 95 <= n < 100
    assert log.read(1, 0, 200).values == [*values[:n], b"new"]


@pytest.mark.parametrize("kind, at", [("data", 5), ("index", 26), ("index", 33), ("index", 41)])
def test_a_flipped_bit_is_noticed(tmp_path, kind, at):
    """Of a record, its end, time or length."""
    filled(tmp_path)
    path = tmp_path / "1" / f"{0:020d}.{kind}"
    data = bytearray(path.read_bytes())
    data[at] ^= 2
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"partition 1: the record at offset \d+ is not what was"):
        FolderLog(tmp_path).read(1, 0, 100)


@pytest.mark.parametrize("kind", ["index", "data", "log.json"])
def test_a_damaged_log_is_read_right_or_refused(tmp_path, kind):
    """Each record has a checksum, and an entry that is cut off is as one that was not written."""
    log, values = filled(tmp_path, n=30)
    name = log.id
    log.close()
    path = tmp_path / kind if "." in kind else tmp_path / "1" / f"{0:020d}.{kind}"
    n_refused, good = 0, path.read_bytes()
    for data in damaged(good):
        path.write_bytes(data)
        try:
            with at_most(8 << 20):
                log = FolderLog(tmp_path)
                found = log.read(min(1, log.partitions - 1), 0, 100)
                log.close()
            if (log.partitions, log.id) == (2, name):  # log.json has no checksum
                assert found.values == values[:found.n]
                assert found.n == 30 or kind == "index" and len(data) < len(good)
        except (ValueError, Gone):
            n_refused += 1
    assert n_refused > N / 3


def test_an_entry_of_two_gigabytes_is_not_read(tmp_path):
    """Its end and its length fit the entry before it: only the size of the file tells."""
    filled(tmp_path)
    path = tmp_path / "1" / f"{0:020d}.index"
    entries = np.fromfile(path, ENTRY)
    entries["length"][-1] = 1 << 31
    entries["end"][-1] = entries["end"][-2] + (1 << 31)
    entries.tofile(path)
    with at_most(8 << 20), pytest.raises(ValueError, match="the record at offset 99 is not what"):
        FolderLog(tmp_path).read(1, 0, 100)


@pytest.mark.parametrize("kind", ["index", "data"])
def test_a_writer_goes_on_after_any_damage(tmp_path, kind):
    log, values = filled(tmp_path / "log", n=30)
    log.close()
    path = tmp_path / "log" / "1" / f"{0:020d}.{kind}"
    good = {file: file.read_bytes() for file in path.parent.iterdir()}
    for data in damaged(good[path]):
        for file, content in good.items():
            file.write_bytes(content)
        path.write_bytes(data)
        log = FolderLog(tmp_path / "log")
        with at_most(8 << 20):
            at = log.append(1, [b"new"], [5])
        assert log.read(1, at, 9).values == [b"new"]
        log.close()


def test_an_index_without_its_data_and_strange_names(tmp_path):
    log, _ = filled(tmp_path)
    log.close()
    (tmp_path / "1" / "notes.index").write_text("mine")
    assert FolderLog(tmp_path).read(1, 0, 100).n == 100
    (tmp_path / "1" / f"{0:020d}.data").unlink()
    with pytest.raises(ValueError, match="the record at offset 0 is not what was written"):
        FolderLog(tmp_path).read(1, 0, 100)


@pytest.mark.parametrize("about", [
    "", "[]", "{}", "null", '{"partitions": 0}', '{"partitions": true}', '{"partitions": 1.0}',
    '{"partitions": 1e999}', '{"partitions": "2"}', '{"partitions": 1099511627776}', "[" * 100000,
    '{"partitions": 2, "id": 3}', "\xff"])
def test_a_log_that_does_not_say_what_it_is_is_refused(tmp_path, about):
    filled(tmp_path)
    (tmp_path / "log.json").write_bytes(about.encode("latin-1"))
    with pytest.raises(ValueError, match="does not describe a log.*was altered"):
        FolderLog(tmp_path)


class Full:
    """`os` on a disk that has room for n_bytes more, and where the fail-th fsync fails."""

    def __init__(self, n_bytes=1 << 30, fail=0):
        self.n_bytes, self.fail = n_bytes, fail

    def __getattr__(self, name):
        return getattr(os, name)

    def pwrite(self, file, data, at):
        if not self.n_bytes:
            raise OSError(28, "No space left on device")
        n = os.pwrite(file, data[:self.n_bytes], at)
        self.n_bytes -= n
        return n

    def fsync(self, file):
        self.fail -= 1
        if self.fail == 0:
            raise OSError(5, "Input/output error")
        os.fsync(file)


@pytest.mark.parametrize("room", [0, 1, 9, 10, 33, 34, 50, 58, 81, 82, 105])
@pytest.mark.parametrize("segment_bytes", [64 << 20, 40])
def test_an_append_that_fails_says_how_much_is_there(tmp_path, monkeypatch, room, segment_bytes):
    """4 records of 10 bytes in all, then 4 entries of 24 bytes. Room for some of that. In the first
    segment, and in a later one."""
    log, values = filled(tmp_path, n=14, segment_bytes=segment_bytes)
    assert len(list((tmp_path / "1").glob("*.data"))) == (1 if segment_bytes > 40 else 2)
    monkeypatch.setattr(folder, "os", Full(room))
    n = max(room - 10, 0) // ENTRY.itemsize
    words = f"the first {n} of 4 records were appended" if n else "no record was appended"
    with pytest.raises(OSError, match=f"partition 1: {words}, from offset 14 on.*No space left"):
        log.append(1, [b"ab", b"", b"cdefg", b"hij"], [0] * 4)
    monkeypatch.undo()
    for reader in (log, FolderLog(tmp_path)):
        assert reader.read(1, 0, 99).values == values + [b"ab", b"", b"cdefg", b"hij"][:n]
    assert log.append(1, [b"more"], [0]) == 14 + n
    assert FolderLog(tmp_path).read(1, 14 + n, 9).values == [b"more"]


@pytest.mark.parametrize("fail, n", [(1, 0), (2, 4)])
def test_an_append_that_is_perhaps_not_on_the_disk_says_so(tmp_path, monkeypatch, fail, n):
    log, values = filled(tmp_path, n=14, sync=True)
    monkeypatch.setattr(folder, "os", Full(fail=fail))
    words = "the first 4 of 4 .*, but perhaps not on the disk" if n else "no record was appended"
    with pytest.raises(OSError, match=words):
        log.append(1, [b"ab"] * 4, [0] * 4)
    monkeypatch.undo()
    assert log.read(1, 0, 99).values == values + [b"ab"] * n


FORKS = """
import os, signal, sys, time
import numpy as np
from minidl.data.stream import FolderLog

def write(acknowledged):
    log = FolderLog(sys.argv[1])
    n = log.newest(0)
    while True:
        n = log.append(0, [b"%d," % k * (k % 50) for k in range(n, n + 9)], [0] * 9) + 9
        os.write(acknowledged, b"%d\\n" % n)

FolderLog(sys.argv[1], 1, segment_bytes=20_000)
for seed in range(40):
    read, written = os.pipe()
    pid = os.fork()
    if not pid:
        write(written)
    os.close(written)
    with open(read) as acknowledged:
        first = acknowledged.readline()
        time.sleep(np.random.default_rng(seed).uniform(0, 0.01))
        os.kill(pid, signal.SIGKILL)
        last = int((acknowledged.readlines() or [first])[-1])
    os.waitpid(pid, 0)
    log = FolderLog(sys.argv[1])
    n = log.newest(0)
    assert last <= n, (last, n)
    assert log.read(0, 0, n).values == [b"%d," % k * (k % 50) for k in range(n)]
print(n)
"""


def test_writers_killed_at_any_moment(tmp_path):
    """40 of them by SIGKILL. Nothing that was acknowledged is lost, and all records are whole."""
    done = subprocess.run([sys.executable, "-c", FORKS, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 360, done.stderr


def test_readers_and_writers_at_the_same_time(tmp_path):
    """Two writers take turns, a reader beside them sees a growing prefix of whole records."""
    log = FolderLog(tmp_path, 1, segment_bytes=2000)

    def write(name):
        mine = FolderLog(tmp_path)
        for k in range(60):
            mine.append(0, [b"%s%d" % (name, k)] * 3, [k] * 3)

    writers = [threading.Thread(target=write, args=(name,)) for name in (b"a", b"b")]
    for writer in writers:
        writer.start()
    seen = []
    while len(seen) < 360:
        seen += log.read(0, len(seen), 50).values
    for writer in writers:
        writer.join()
    for name in (b"a", b"b"):
        assert [v for v in seen if v.startswith(name)] == [
            b"%s%d" % (name, k) for k in range(60) for _ in range(3)]
    assert all(len(set(seen[i:i + 3])) == 1 for i in range(0, 360, 3)), "an append is not divided"


def test_a_time_is_found_a_part_of_a_segment_at_a_time(tmp_path):
    log, n = FolderLog(tmp_path, 1), 5 * SCAN + 7
    log.append(0, [b""] * n, 10 * np.arange(n))
    tracemalloc.start()
    for at in (0, SCAN - 1, SCAN, SCAN + 1, 4 * SCAN, n - 1, n):
        assert log.at_time(0, 10 * at - 5) == at
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 3 * SCAN * ENTRY.itemsize < n * ENTRY.itemsize


def test_wrong_use_is_refused(tmp_path):
    with pytest.raises(ValueError, match="there is no log in"):
        FolderLog(tmp_path / "none")
    log, _ = filled(tmp_path)
    with pytest.raises(ValueError, match="has 2 partitions; got partitions=3"):
        FolderLog(tmp_path, 3)
    with pytest.raises(ValueError, match="has partitions 0 to 1; got partition 2"):
        log.read(2, 0, 1)
    with pytest.raises(ValueError, match="got 2 records and 1 times"):
        log.append(0, [b"a", b"b"], [1])
    with pytest.raises(ValueError, match="address is file:FOLDER, redis:"):
        stream.open("http://x")


def test_records_as_an_array(tmp_path):
    log, kind = FolderLog(tmp_path, 1), np.dtype([("id", "<i8"), ("x", "<f4", 3)])
    rows = np.zeros(5, kind)
    rows["id"] = np.arange(5)
    log.append(0, [row.tobytes() for row in rows], [0] * 5)
    found = log.read(0, 1, 4).typed(kind)
    assert found.values["id"].tolist() == [1, 2, 3, 4]
    assert found.pick(np.array([3, 0])).values["id"].tolist() == [4, 1]
    assert found.then(found).values["id"].tolist() == [1, 2, 3, 4] * 2
    assert log.read(0, 5, 1).typed(kind).n == 0
    log.append(0, [b"short"], [0])
    with pytest.raises(ValueError, match="want records of 20 bytes each.*got 5 to 20"):
        log.read(0, 0, 9).typed(kind)


def test_an_entry_is_24_bytes_whatever_the_machine():
    assert ENTRY.itemsize == 24 and ENTRY["end"].byteorder in "<="


def test_files_of_segments_behind_a_reader_do_not_stay_open(tmp_path):
    """Nor their place on the disk, once they are deleted; and who reads meanwhile is not disturbed:
    a file's number is free again when the last read is done."""
    def is_open():
        return [path for path in map(os.path.realpath, Path("/proc/self/fd").iterdir())
                if path.startswith(str(tmp_path))]

    log, writer = (FolderLog(tmp_path, 1, segment_bytes=1) for _ in range(2))
    for k in range(40):
        writer.append(0, [b"%d" % k], [k])
        assert log.read(0, k, 1).values == [b"%d" % k]
        writer.delete_before(0, k - 3)
        assert len(is_open()) <= 7, "the lock, and of each kind one to read and one to write"
    held = log._file(0, 39, "data")
    log.delete_before(0, 40)
    log.close()
    assert os.pread(held, 2, 0) == b"39"
    writer.close()
    del held
    assert not is_open()


@pytest.mark.parametrize("sync, n", [(True, 2), (False, 0)])
def test_an_append_is_on_disk_before_it_returns_if_that_is_asked(tmp_path, monkeypatch, sync, n):
    """Data, then index: an fsync each."""
    log, calls = FolderLog(tmp_path, 1, sync=sync), []
    log.append(0, [b"first"], [0])  # makes the files
    monkeypatch.setattr(os, "fsync", calls.append)
    log.append(0, [b"second"], [0])
    assert len(calls) == n
