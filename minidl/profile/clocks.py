"""Converts the times of all ranks to rank 0's clock. Clocks of two computers differ, and drift.

    rank 0   a |--- ping ---.              .--> | b       time (a + b) / 2 of rank 0 is time
    rank r                  '-> theirs ----'              `theirs` of rank r, +- (b - a) / 2

Only the shortest of many rounds counts, because a busy machine makes rounds longer. A round gives a
pair of times of one moment: the time by rank 0's clock, and the time by rank r's clock. One pair is
measured before the run, and one pair after the run. The two pairs give a straight line: an offset
and a drift. If each clock runs at a constant speed, the error during the run is at most the larger
error of the two pairs.

Source: Cristian, "Probabilistic clock synchronization" (1989).
Test: tests/profile/test_clocks.py   Used by: record.py
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from minidl.comm import tree

ROUNDS, ENOUGH_S = 400, 5e-6  # measuring ends after 400 rounds, or at an error of 5e-6 s
SECONDS = 0.03  # if messages are slow, measuring one rank ends after this many seconds


class Pair(NamedTuple):
    """The times of one moment by two clocks, in seconds. mine: the time by rank 0's clock. theirs:
    the time by another rank's clock. error_s: the largest possible error."""

    mine: float
    theirs: float
    error_s: float


def measure(t, clock, rounds=ROUNDS):
    """On rank 0, returns a list with a Pair for each rank. On other ranks, returns None. All ranks
    must call this function. clock: a function that returns this rank's time in seconds."""
    tree.barrier(t)
    word, pairs = np.zeros(1), [Pair(0.0, 0.0, 0.0)]
    for peer in range(1, t.size):
        best = Pair(0.0, 0.0, np.inf)
        if t.rank == 0:
            began = clock()
            for left in reversed(range(rounds)):
                here = clock()
                enough = best.error_s <= ENOUGH_S or here - began > SECONDS
                word[0] = 0 if left == 0 or enough else 1
                t.send(word, peer)
                go_on = word[0]
                t.recv(word, peer)
                there, error_s = clock(), 0.0
                error_s = (there - here) / 2
                if error_s < best.error_s:
                    best = Pair((here + there) / 2, float(word[0]), error_s)
                if not go_on:
                    break
            pairs.append(best)
        elif t.rank == peer:
            go_on = 1
            while go_on:
                t.recv(word, 0)
                go_on = word[0]
                word[0] = clock()
                t.send(word, 0)
    tree.barrier(t)
    return pairs if t.rank == 0 else None


def line(first, last):
    """Returns (`here`, `drift`, error in seconds) from two Pairs of a rank.

    `here` is a function: here(theirs) converts a time by that rank's clock to a time by rank 0's
    clock. `drift` tells how many seconds that rank's clock gains on rank 0's clock in a second."""
    span = last.theirs - first.theirs
    pace = (last.mine - first.mine) / span if span else 1.0  # span is 0 for rank 0 itself

    def here(theirs):
        return first.mine + (theirs - first.theirs) * pace

    return here, 1 / pace - 1, max(first.error_s, last.error_s)


def aligned(record, first, last):
    """Returns a copy of a Record, with all times converted to rank 0's clock. first, last: the
    Pairs of the Record's rank from before and after the run."""
    here, drift, error_s = line(first, last)
    return replace(
        record, begin=here(record.begin), end=here(record.end), steps=[*map(here, record.steps)],
        lanes={name: [(kind, what, here(a), here(b), *rest) for kind, what, a, b, *rest in spans]
               for name, spans in record.lanes.items() if spans},
        messages=[(way, key, here(at), n) for way, key, at, n in record.messages],
        queue=[(here(at), n) for at, n in record.queue],
        memory=[(here(at), held) for at, held in record.memory], error_s=error_s, drift=drift,
        devices={lane: (off_s, [*map(here, at)]) for lane, (off_s, at) in record.devices.items()})
