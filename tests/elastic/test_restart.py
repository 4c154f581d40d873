"""A run that dies anywhere and is started again ends in the uninterrupted run's bits."""

import os
import random

import pytest

from minidl import elastic, snapshot
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.snapshot import durable
from minidl.snapshot.snapshot import SnapshotError
from tests.conftest import each_once
from tests.elastic import runs

STEPS = 11


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Only a power failure needs it, and it takes most of the time."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


class Killed(Exception):
    pass


def train(n, kind, folder, kill=None, every=3, seen=None, steps=STEPS):
    """The digests of all ranks after a run in the simulator. kill: (rank, step)."""

    def one_step(t, step, **objects):
        if (t.rank, step) == kill:
            raise Killed
        runs.step(t, step, seen=seen, **objects)

    def rank(t):
        return runs.digest(elastic.run(one_step, runs.state(kind), steps, folder, every,
                                       t)["model"])

    return simulate(n, rank)


@pytest.mark.parametrize("kind", runs.KINDS)
def test_a_run_that_dies_twice_ends_in_the_same_bits(kind, tmp_path):
    n = {"pipeline": 3, "dgc": 3}.get(kind, 2)
    whole = train(n, kind, tmp_path / "whole", every=100)
    rng = random.Random(kind)
    for step in (rng.randrange(1, 6), rng.randrange(9, STEPS)):
        with pytest.raises(RankFailed):
            train(n, kind, tmp_path / "killed", kill=(rng.randrange(n), step))
    assert snapshot.steps(tmp_path / "killed"), "the second died after the first snapshot"
    assert train(n, kind, tmp_path / "killed") == whole


@pytest.mark.parametrize("kind, then", each_once(
    ["dp", "zero1", "zero2", "zero3", "dgc", "local", "diloco"], [1, 2, 4]))
def test_on_another_number_of_ranks_each_sample_is_used_once(kind, then, tmp_path):
    first, rest = [], []
    with pytest.raises(RankFailed):
        train(3, kind, tmp_path, kill=(1, 7), every=2, seen=first, steps=10)
    (at, *_), kept = snapshot.steps(tmp_path)[::-1], []
    assert 2 <= at <= 6
    train(then, kind, tmp_path, every=100, seen=rest, steps=10)
    for step, samples in [(s, x) for s, x in first if s < at] + rest:
        kept += [(step // 5, sample) for sample in samples]  # 5 steps an epoch
    assert sorted(kept) == [(epoch, i) for epoch in (0, 1) for i in range(runs.N)]


def test_nothing_is_done_twice_and_nothing_left_out(tmp_path):
    whole, parts = [], []
    train(2, "dp", tmp_path / "whole", seen=whole)
    with pytest.raises(RankFailed):
        train(2, "dp", tmp_path / "runs", kill=(0, 8), seen=parts)
    before = [entry for entry in parts if entry[0] < 6]
    parts.clear()
    train(2, "dp", tmp_path / "runs", seen=parts)
    assert sorted(before + parts) == sorted(whole)


@pytest.mark.parametrize("kind, what", each_once(
    ["dp", "local"], ["index", "data", "cut", "gone"]))
def test_a_damaged_newest_snapshot_is_set_aside_for_the_one_before(kind, what, tmp_path, capfd):
    whole = train(2, kind, tmp_path / "whole")
    with pytest.raises(RankFailed):
        train(2, kind, tmp_path / "runs", kill=(1, 9), every=2)
    step = snapshot.latest(tmp_path / "runs")
    data = next((tmp_path / "runs").glob(f"step-{step:08d}.1-of-2.*"))
    path = next((tmp_path / "runs").glob(f"step-{step:08d}.json")) if what == "index" else data
    if what == "gone":
        path.unlink()
    else:
        text = bytearray(path.read_bytes())
        text[len(text) // 2] ^= 1
        path.write_bytes(text[:-5] if what == "cut" else text)
    assert train(2, kind, tmp_path / "runs", every=2) == whole
    said = capfd.readouterr().err
    assert path.name in said and f"damaged-step-{step:08d}.json" in said


def test_a_rank_whose_own_snapshot_is_damaged_is_believed(tmp_path, capfd):
    whole = train(2, "local", tmp_path / "whole")
    with pytest.raises(RankFailed):
        train(2, "local", tmp_path / "runs", kill=(1, 9), every=2)
    step = snapshot.latest(tmp_path / "runs")
    path = next((tmp_path / "runs" / "rank1").glob(f"step-{step:08d}.0*"))
    path.write_bytes(path.read_bytes()[:-1])
    assert train(2, "local", tmp_path / "runs", every=2) == whole
    assert "rank1" in capfd.readouterr().err


def test_what_all_ranks_have_written_counts_and_nothing_less(tmp_path, monkeypatch):
    """A disk that is full at call k of os.write: an error on all ranks, then the same bits."""
    whole = train(2, "zero1", tmp_path / "whole")
    calls = []

    def write(file, data):
        calls.append(1)
        if len(calls) == full:
            raise OSError(28, "No space left on device")
        return os.write(file, data)

    class Disk:
        def __getattr__(self, name):
            return write if name == "write" else getattr(os, name)

    monkeypatch.setattr(durable, "os", Disk())
    for full in (1, 4, 9, 14):
        calls.clear()
        folder = tmp_path / str(full)
        with pytest.raises(RankFailed) as failure:
            train(2, "zero1", folder, every=2)
        assert isinstance(failure.value.__cause__, SnapshotError)
        assert "No space left" in str(failure.value.__cause__)
        assert train(2, "zero1", folder, every=2) == whole


def test_another_runs_folder_is_refused(tmp_path):
    train(1, "dp", tmp_path, steps=6)
    with pytest.raises(RankFailed) as failure:
        train(1, "dp", tmp_path, steps=4)
    assert ("holds a snapshot of step 6, but this run has only 4 steps"
            in str(failure.value.__cause__))


def test_a_run_that_is_over_trains_no_more(tmp_path):
    first, again = train(2, "dp", tmp_path), []
    assert train(2, "dp", tmp_path, seen=again) == first and not again


def test_a_snapshot_every_0_steps_is_refused(tmp_path):
    with pytest.raises(ValueError, match="wanted every >= 1 .*; got 0"):
        elastic.run(None, None, 1, tmp_path, every=0)
