"""Finds a straggler: a rank that computes longer than the others, so that all others must wait.

    rank 0   | compute | wait ........ | compute | wait ........ |     computes 0.1 s per step
    rank 1   | compute | wait ........ | compute | wait ........ |     0.1 s
    rank 2   | compute ............... | compute ............... |     0.3 s: 3 times the median

A step takes the same time on all ranks, so the time of a step does not show the straggler. The
computing time shows the straggler. The computing time is the time of a step minus the time in which
the main thread waits for other ranks. `t.stepped()` ends a step (elastic.run calls this method).
After STEPS steps, but at most once in PACE_S seconds, the lookout of the first rank asks all ranks
for their computing times. For n ranks the lookout sends n short TCP messages.

A straggler is reported, and the run continues. In local SGD and with a parameter server, ranks do
not wait at every step. So a straggler costs them less time. LocalSGD(without=) and the server's
argument `slower` let the other ranks continue without the straggler.

Source: Dean & Barroso 2013, "The tail at scale" (CACM): how a few slow machines slow down all.
Test: tests/comm/observe/test_stragglers.py
Used by: lookout.py; parallel/data/straggler.py and parallel/server, which can continue without it
"""

from statistics import median_low
from typing import NamedTuple

# The computing time of a straggler is at least this many times the median. A rank that only shares
# its core with another program usually takes less time than a straggler.
RATIO = 2.0
STEPS = 20  # computing times are measured over at least this many steps
PACE_S = 5.0  # the shortest time in seconds between two questions to all ranks


class Straggler(NamedTuple):
    rank: int
    host: str
    n_steps: int
    step_s: float  # seconds of computing per step
    median_s: float  # the median of all ranks' step_s

    def __str__(self):
        return (f"rank {self.rank} on {self.host} is a straggler: in its last {self.n_steps} steps "
                f"it computed {self.step_s:.3g} s a step, {self.step_s / self.median_s:.1f} times "
                f"the median of the ranks, which is {self.median_s:.3g} s")


def stragglers(before, after, ratio=RATIO, n_steps=STEPS):
    """Returns a list with a Straggler for each rank that computes much longer than the others.

    before, after: {rank: State} at an earlier and a later time. A rank is a straggler if two things
    are true. It has done n_steps steps or more in this interval. Its computing time per step is at
    least `ratio` times the median of all ranks. If there are two ranks, the lower time is the
    median."""
    paces = {}
    for rank, state in after.items():
        steps = state.steps - before[rank].steps if rank in before and not state.silent else 0
        if steps > 0:
            paces[rank] = steps, (state.computed_s - before[rank].computed_s) / steps
    if len(paces) < 2:
        return []
    middle = median_low([pace for _, pace in paces.values()])
    slow = slower({rank: pace for rank, (_, pace) in paces.items()}, ratio)
    return [Straggler(rank, after[rank].host, paces[rank][0], paces[rank][1], middle)
            for rank in slow if paces[rank][0] >= n_steps]


def slower(paces, ratio=RATIO):
    """Returns {rank: its time / the median time} for the slow ranks. A rank is slow if its time is
    at least `ratio` times the median.

    paces: {rank: seconds per step}."""
    middle = median_low(paces.values())
    return {rank: pace / middle for rank, pace in paces.items() if pace >= ratio * middle > 0}
