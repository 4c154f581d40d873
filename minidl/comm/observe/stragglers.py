"""Which rank computes longer than the others: a straggler, for which all wait at every step.

    rank 0   | compute | wait ........ | compute | wait ........ |     computed a step: 0.1 s
    rank 1   | compute | wait ........ | compute | wait ........ |     0.1 s
    rank 2   | compute ............... | compute ............... |     0.3 s: 3 times the median

A step takes all ranks equally long, so its time names nobody; what a rank computes in it does: all
time but that in which its main thread waits for others. `t.stepped()` ends a step (elastic.run does
it). The first rank's lookout asks all for their sums after STEPS steps, at most every PACE_S
seconds: nothing is sent beside training but n short TCP messages then. The run goes on; in local
SGD and with a parameter server, whose ranks do not wait at every step, the others lose less,
or go on without it.
Source: Dean & Barroso 2013, "The tail at scale" (CACM): how a few slow machines become the pace.
Test: tests/comm/observe/test_stragglers.py
Used by: lookout.py; parallel/data/straggler.py and parallel/server, which go on without one
"""

from statistics import median_low
from typing import NamedTuple

RATIO = 2.0  # times the median; a busy neighbour on a core costs less
STEPS = 20  # in which it must be so
PACE_S = 5.0


class Straggler(NamedTuple):
    rank: int
    host: str
    n_steps: int
    step_s: float  # computed a step
    median_s: float  # of all ranks

    def __str__(self):
        return (f"rank {self.rank} on {self.host} is a straggler: in its last {self.n_steps} steps "
                f"it computed {self.step_s:.3g} s a step, {self.step_s / self.median_s:.1f} times "
                f"the median of the ranks, {self.median_s:.3g} s")


def stragglers(before, after, ratio=RATIO, n_steps=STEPS):
    """Those among {rank: State}, asked twice, that have done n_steps or more since, each computing
    `ratio` times the median of all. Two ranks have no majority: the median is the lower one's."""
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
    """{rank: times the median} of those in {rank: seconds a step} that take `ratio` times it."""
    middle = median_low(paces.values())
    return {rank: pace / middle for rank, pace in paces.items() if pace >= ratio * middle > 0}
