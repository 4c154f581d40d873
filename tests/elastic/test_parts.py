"""Replicas that differ, in two snapshots that belong together."""

import os

import pytest

from minidl import elastic, snapshot
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from tests.elastic import runs
from tests.elastic.test_restart import Killed, train


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)


def test_each_rank_has_its_own_folder_and_one_snapshot_more_in_it(tmp_path):
    train(2, "local", tmp_path, every=2, steps=14)
    assert snapshot.steps(tmp_path) == [11, 14]  # rounds end at 2, 5, 8, ...
    assert all(snapshot.steps(tmp_path / f"rank{r}") == [8, 11, 14] for r in (0, 1))


def test_local_sgd_is_saved_at_the_end_of_a_round_alone(tmp_path):
    train(2, "local", tmp_path, every=3, steps=10)
    assert snapshot.steps(tmp_path) == [5, 8]  # due at 3, 6, 9


@pytest.mark.parametrize("kind", ["local", "diloco"])
def test_own_snapshots_of_steps_that_the_common_one_has_not_are_forgotten(kind, tmp_path):
    """All ranks die after their own are written, before the common one is begun."""
    whole = train(2, kind, tmp_path / "whole", every=3)

    def rank(t):
        def one_step(t, step, **objects):
            if step == 9:
                raise Killed
            runs.step(t, step, **objects)

        elastic.run(one_step, runs.state(kind), 11, tmp_path / "runs", 3, t)

    with pytest.raises(RankFailed):
        simulate(2, rank)
    step = snapshot.latest(tmp_path / "runs")
    if later := [s for s in snapshot.steps(tmp_path / "runs" / "rank0") if s > step]:
        assert later[0] <= 9
    else:  # as if it had not got so far
        next((tmp_path / "runs").glob(f"step-{step:08d}.json")).unlink()
    assert train(2, kind, tmp_path / "runs") == whole
