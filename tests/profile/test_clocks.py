"""Clocks that are wrong on purpose are found out, by the messages alone."""

import time

import numpy as np
import pytest

from minidl.comm import simulate
from minidl.profile import clocks
from minidl.profile.clocks import Pair
from minidl.profile.record import Record
from tests.mpi.launch import mpiexec

BOUND_S = 50e-6  # on one host


def wrong_clock(rank):
    """An offset of seconds to minutes, and a drift of up to 300 us a second."""
    offset, pace = 37.25 * rank - 3.0 * rank * rank, 1 + 1e-4 * rank
    return lambda: offset + pace * time.perf_counter()


def recovered(t, pause_s=0.3):
    """On rank 0: for each rank how far its clock, put right, is off, and its drift. All ranks share
    one perf_counter: a host's. On the others None."""
    clock = wrong_clock(t.rank)
    first = clocks.measure(t, clock)
    time.sleep(pause_s)
    last = clocks.measure(t, clock)
    if t.rank:
        return None
    found = []
    for rank, (a, b) in enumerate(zip(first, last, strict=True)):
        here, drift, error_s = clocks.line(a, b)
        both = [(wrong_clock(rank)(), wrong_clock(0)()) for _ in range(50)]  # at nearly one moment
        off = min(abs(here(theirs) - mine) for theirs, mine in both)
        found.append((off, drift, error_s))
    return found


def judge(found, bound_s, pause_s):
    """Within the bound, on a busy machine within the error that it states itself."""
    for rank, (off, drift, error_s) in enumerate(found):
        assert off < max(bound_s, error_s), (rank, found)
        assert abs(drift - 1e-4 * rank) < (2 * BOUND_S + 2 * error_s) / pause_s, (rank, found)


def test_an_offset_and_a_drift_are_recovered_in_the_simulator():
    judge(simulate(4, recovered, 0.05)[0], BOUND_S, 0.05)


def test_a_line_through_two_moments_is_exact():
    here, drift, error_s = clocks.line(Pair(10.0, 110.0, 1e-6), Pair(20.0, 120.001, 3e-6))
    assert here(110.0) == 10 and here(120.001) == pytest.approx(20, abs=1e-12)
    assert drift == pytest.approx(1e-4) and error_s == 3e-6
    same, none, _ = clocks.line(Pair(0, 0, 0), Pair(0, 0, 0))
    assert same(5.0) == 5.0 and none == 0


def test_all_times_of_a_record_move_together():
    record = Record(1, 100.0, 200.0, {"main": [("user", "x", 110.0, 120.0, "", None)], "task": []},
                    [150.0], [("send", ("main", 0), 130.0, 8)], [(140.0, 1)],
                    [(145.0, {})], {"cuda:0 stream 0": (2e-6, [112.0])})
    moved = clocks.aligned(record, Pair(0.0, 100.0, 1e-6), Pair(200.0, 200.0, 0.0))
    assert (moved.begin, moved.end, moved.steps) == (0, 200, [100])
    assert moved.lanes == {"main": [("user", "x", 20.0, 40.0, "", None)]}
    assert moved.messages[0][2] == 60 and moved.queue == [(80, 1)] and moved.memory == [(90, {})]
    assert moved.devices == {"cuda:0 stream 0": (2e-6, [24])}
    assert moved.drift == -0.5 and moved.error_s == 1e-6


def test_the_offset_is_that_of_the_middle_of_a_round_trip():
    """Clocks that go on by 1 at each look: rank 0 looks at 2 k and 2 k + 1, rank 1 meanwhile."""
    def run(t):
        ticks = iter(range(10**6))
        return clocks.measure(t, lambda: float(next(ticks)), rounds=3)

    pair = simulate(2, run)[0][1]
    assert pair.mine % 1 == 0.5 and pair.error_s == 0.5 and pair.theirs % 1 == 0


@pytest.mark.mpi
def test_an_offset_and_a_drift_are_recovered_between_processes():
    code = ("from tests.profile.test_clocks import *\n"
            "from minidl import comm\n"
            "t = comm.world()\n"
            "found = recovered(t)\n"
            "if t.rank == 0:\n"
            "    judge(found, BOUND_S, 0.3)\n"
            "    print('all within', max(f[0] for f in found))\n")
    done = mpiexec(2, "-c", code, timeout=60, check=True)
    assert "all within" in done.stdout


def test_the_shortest_round_trip_counts():
    """One message in 20 is late: the mean would be off by a millisecond, the least is not."""
    def run(t):
        rng = np.random.default_rng(t.rank)

        def clock():
            if rng.random() < 0.05:
                time.sleep(1e-3)
            return time.perf_counter()

        return clocks.measure(t, clock, rounds=60)

    pair = simulate(2, run)[0][1]
    assert abs(pair.theirs - pair.mine) < 5e-4 and pair.error_s < 5e-4
