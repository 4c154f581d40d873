"""Pairs of a technique and a run that goes on, to the same bits: restarted, with a rank replaced,
loaded elsewhere.

tests/test_together.py holds docs/together.md against these tests and the others."""

import os
import shutil

import numpy as np
import pytest

from minidl import elastic, snapshot
from minidl.comm import simulate
from minidl.comm.transport.scheduler import RankFailed
from minidl.elastic import buddy
from minidl.parallel.model.parallelize import whole_state_dict
from minidl.precision import amp
from tests.conftest import whole_form
from tests.parallel.pairs import STEPS, WITH, Run, few, made, plain, profiled


def killed(way, how, folder, at=None):
    """All ranks' weights after an elastic run, whose rank 1 dies in step `at`."""
    def body(t):
        runs = []

        def state(t):
            runs.append(Run(t, way, how))
            return runs[-1].parts

        def train(t, step, **parts):
            if (t.rank, step) == (1, at):
                raise ZeroDivisionError
            runs[-1].step(step)

        with profiled(t, how, "forward", "snapshot"):
            elastic.run(train, state, 6, folder, 2, t)
        return runs[-1].weights()

    return simulate(2, body)


@whole_form
def test_a_run_that_is_started_again_ends_in_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
    cases = [(way, "") for way in ("tensor", "sequence", "context", "experts", "SyncBatchNorm")]
    for way, how in [*cases, *WITH]:
        whole, again = killed(way, how, tmp_path / "whole"), tmp_path / "again"
        with pytest.raises(RankFailed):
            killed(way, how, again, at=4)
        assert snapshot.latest(again) is not None
        for mine, want in zip(killed(way, how, again), whole, strict=True):
            for a, b in zip(mine, want, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{way}, {how}")
        for folder in (again, tmp_path / "whole"):
            shutil.rmtree(folder)


def healed(way, how=""):
    """All ranks' weights after STEPS steps, of which rank 1 has died in the last: a new process
    has its place."""
    copied = {}

    def before(t):
        run = Run(t, way, how)
        copied[t.rank] = buddy.Buddies(t, run.parts)
        for step in range(STEPS):
            copied[t.rank].save(step)
            run.step(step)
        copied[t.rank].settle()

    def after(t):
        run = Run(t, way, how)
        mine = copied[0] if t.rank == 0 else None
        with profiled(t, how, "forward"):
            buddy.restore(t, mine, reports, chosen, run.parts)
            for step in range(chosen[1], STEPS):
                run.step(step)
        return run.weights()

    simulate(2, before)
    reports = [[copied[0].report()], []]
    chosen = buddy.choose(reports)
    assert chosen[1] == STEPS - 1
    copied[0].let_go(chosen[1])
    return simulate(2, after)


def test_a_rank_that_is_replaced_has_changed_nothing():
    cases = [(way, "") for way in ("sequence", "context", "experts", "compression",
                                   "SyncBatchNorm")]
    for way, how in few([*cases, *WITH], "replaced"):
        for mine, want in zip(healed(way, how), plain(way, how), strict=True):
            for a, b in zip(mine, want, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=f"{way}, {how}")


def test_one_rank_loads_what_two_have_saved(tmp_path):
    def write(t, way, how, folder):
        run = Run(t, way, how)
        run.step(0)
        with profiled(t, how, "snapshot"):
            snapshot.save(folder, 1, t, **run.parts)
        state = {name: x.array.copy() for name, x in whole_state_dict(run.net).items()}
        run.weights()
        return state

    cases = [("sequence", ""), ("context", ""), ("SyncBatchNorm", "")]
    for way, how in few([*cases, *WITH], "loaded"):
        folder = tmp_path / f"{way} {how}"
        want, alone = simulate(2, write, way, how, folder)[0], made(way)
        if how == "halves":
            amp.prepare(alone, "O2")
        assert snapshot.load(folder, model=alone) == 1
        for name, x in alone.state_dict().items():
            np.testing.assert_array_equal(x, want[name], err_msg=f"{way}, {how}: {name}")
