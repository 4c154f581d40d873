"""The page and the real one: the same records in the same steps, also after a crash."""

import os
import tempfile
from itertools import islice

import pytest

from minidl.comm import simulate
from minidl.data.stream import FolderLog, Source
from minidl.plain import stream

LENGTHS = [13, 0, 7, 6, 1]
K = 3


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Only a power failure needs it, and it takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="module")
def real_log():
    with tempfile.TemporaryDirectory() as folder:
        log = FolderLog(folder + "/log", len(LENGTHS))
        for p, n in enumerate(LENGTHS):
            if n:
                log.append(p, [b"%d:%d" % (p, k) for k in range(n)], list(range(n)))
        yield log
        log.close()


LOG = [["%d:%d" % (p, k) for k in range(n)] for p, n in enumerate(LENGTHS)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_steps_and_offsets_are_the_real_ones(n, real_log):
    n_steps = -(-max(LENGTHS) // K)

    def body(t):
        source = Source(real_log, t, per_partition=K, block=1, until=LENGTHS)  # in the log's order
        offsets = stream.start(t.rank, t.size, LOG)
        for parts, _ in islice(source, n_steps):
            records = stream.step(LOG, offsets, K)
            assert records == [v.decode() for part in parts for v in part.values]
            place = {p: first + i for p, first, _, i in source.rows()["place"].tolist()}
            assert offsets == place
        assert stream.step(LOG, offsets, K) == []
        return offsets

    ends = simulate(n, body)
    assert {p: end for offsets in ends for p, end in offsets.items()} == dict(enumerate(LENGTHS))


@pytest.mark.parametrize("crash", range(1, 6))
def test_each_record_is_used_once_wherever_it_crashes(crash, tmp_path, monkeypatch):
    """It dies in a save: before the rename, so the state of the save before is still there."""
    path = str(tmp_path / "state")

    def run(offsets, used, dies=None):
        for i in range(6):
            used = used + stream.step(LOG, offsets, K)
            if i == dies:
                with monkeypatch.context() as broken, pytest.raises(OSError):
                    broken.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(OSError))
                    stream.save(path, offsets, used)
                return
            stream.save(path, offsets, used)

    run(stream.start(0, 1, LOG), [], dies=crash)
    run(*stream.load(path))
    assert sorted(stream.load(path)[1]) == sorted(sum(LOG, []))
