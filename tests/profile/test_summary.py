"""The rows of a step add up to it, and each second lies in the right one."""

import time

import numpy as np
import pytest

from minidl import comm
from minidl.profile import summary
from minidl.profile.record import Record
from tests.profile.test_record import batch, model_and_step

OP = ([((2, 2), np.dtype("f4"))], (2, 2), [True], False)


def collective(start, end, number, group=(0, 1)):
    return ("collective", "ring.all_reduce", start, end, "",
            (8, 8, 2, tuple(r for r in group), group, number, "train.py:1"))


def record(rank=0, spans=(), steps=(10.0,), **lanes):
    return Record(rank, 0.0, steps[-1], {"main": list(spans), **lanes}, list(steps))


def rows(*records):
    found = summary.of(list(records), {"float32": 1e9, "float64": 5e8, "bandwidth": 1e9})
    for rank in found["ranks"]:
        assert sum(rank["rows"].values()) == pytest.approx(rank["step_s"], rel=1e-12)
    return [{k: v for k, v in r["rows"].items() if abs(v) > 1e-12} for r in found["ranks"]]


def test_each_moment_counts_for_the_innermost_span():
    (found,) = rows(record(spans=[
        ("input", "input", 0.0, 1.0, "", None), ("module", "m", 1.0, 4.0, "", None),
        ("forward", "linear", 1.5, 3.5, "m", OP), ("kernel", "k", 2.0, 3.0, "m", 8),
        ("backward", "recompute", 4.0, 8.0, "", OP), ("forward", "linear", 4.5, 5.5, "", OP),
        ("backward", "linear", 6.0, 7.0, "", OP), ("optimizer", "optimizer", 8.0, 8.5, "", None)]))
    assert found == {"input": 1.0, "forward": 2.0, "recompute": 1.0, "backward": 3.0,
                     "optimizer": 0.5, "Python": 2.5}


def test_waiting_for_the_slowest_rank_is_apart_from_moving_bytes():
    fast, slow = rows(record(0, [collective(2.0, 6.0, 0)]), record(1, [collective(5.0, 6.5, 0)]))
    assert fast == {"waiting for the slowest rank": 3.0, "moving bytes": 1.0, "Python": 6.0}
    assert slow == {"moving bytes": 1.5, "Python": 8.5}


def test_a_wait_for_a_job_that_waits_for_a_rank_is_a_wait_for_that_rank():
    wait = ("wait", "background communication", 3.0, 8.0, "", None)
    fast, _ = rows(record(0, [wait], communication=[collective(1.0, 8.0, 0)]),
                   record(1, [], communication=[collective(6.0, 8.0, 0)]))
    assert fast == {"waiting for the slowest rank": 3.0, "waiting for background": 2.0,
                    "Python": 5.0}


def test_hidden_communication_is_not_exposed():
    work = ("backward", "linear", 1.0, 5.0, "", OP)
    wait = ("wait", "background communication", 5.0, 6.0, "", None)
    found = summary.of([record(0, [work, wait], communication=[
        collective(2.0, 6.0, 0, group=(0,))])], {"float32": 1, "float64": 1, "bandwidth": 1})
    assert found["ranks"][0]["communication"] == {"total_s": 4.0, "exposed_s": 1.0}


def test_the_first_of_three_steps_is_left_out():
    spans = [("input", "input", a, b, "", None) for a, b in ((0, 9), (10, 11), (20, 22))]
    (found,) = rows(record(spans=spans, steps=(10.0, 20.0, 30.0)))
    assert found == {"input": 1.5, "Python": 8.5}


def test_spans_that_cross_are_two_ranks_in_one_lane():
    with pytest.raises(ValueError, match="overlap.*must open its own"):
        rows(record(spans=[("input", "a", 0.0, 2.0, "", None), ("input", "b", 1.0, 3.0, "", None)]))


def test_the_rows_are_the_steps_time_by_another_clock():
    _, step = model_and_step()
    import minidl
    with minidl.profile() as p:
        for _ in range(3):
            step(*batch(512))
        start = time.perf_counter()
        for _ in range(20):
            step(*batch(512))
        wall_s = (time.perf_counter() - start) / 20
        del p.record.steps[:2]  # what is left: one step, then the twenty
    (rank,) = p.summary["ranks"]
    assert p.summary["n_steps"] == 20
    assert sum(rank["rows"].values()) == pytest.approx(wall_s, rel=0.02)
    assert all(s >= 0 for s in rank["rows"].values())


def test_figures_are_the_same_on_ranks_with_wrong_clocks():
    """A second and a drift off: the wait for the slowest rank is measured all the same."""
    import minidl
    from minidl.comm import ring

    def run(t):
        def clock():
            return time.perf_counter() * (1 + 1e-4 * t.rank) + 5.0 * t.rank

        with minidl.profile(t, clock=clock) as p:
            for _ in range(4):
                if t.rank == 1:
                    time.sleep(0.01)
                ring.all_reduce(t, np.ones(10))
                p.step()
        return p

    found = comm.simulate(2, run)[0].summary["ranks"]
    waits = [r["rows"]["waiting for the slowest rank"] for r in found]
    assert waits[0] > 0.009 and waits[1] < 0.002
    assert found[1]["drift"] == pytest.approx(1e-4, rel=0.5) and found[1]["error_s"] < 1e-3
