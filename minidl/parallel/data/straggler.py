"""Rounds of local SGD that do not wait for a straggler: LocalSGD(..., without=2.0).

    rank 0   | round 1 | mean | round 2 | mean of 0, 1 | round 3 | mean of 0, 1 | round 4
    rank 1   | round 1 | mean | round 2 | mean of 0, 1 | round 3 | mean of 0, 1 | round 4
    rank 2   | round 1 | mean | its round 2, twice as long ..... | gets the mean | round 4

The rule. When all n ranks average together (a meeting), they exchange their times. A rank's time is
the mean time of its steps since the last mean, in seconds. If a rank's time is at least `without`
times the median, this rank is left out of the next rounds. The other p ranks average without the
slow rank: they divide the sum of their weights by p. The other ranks make several rounds until the
slow rank has finished its own round. All ranks compute this number of rounds from the slow rank's
time. The next meeting is after this number of rounds, but after MOST_ROUNDS rounds at the latest.
If the slow rank comes later, the other ranks wait for it.

The slow rank started its round from an old mean, so its weights do not count in the new mean. The
slow rank gets the mean weights of the other ranks, and the number of their steps. Then the slow
rank takes part again, unless it is still slow. While a rank is out, no further rank is left out.
All ranks decide from the same table of times, so all ranks have the same bits at every meeting.

    while local.rounds.n_steps < 1000:        not `for`: a rank that was out has made fewer steps
        ...
        local.step()
    local.finish()                            on all ranks; a rank that is out gets the last mean

In a round each of the p ranks sends 2 (p-1)/p K bytes, for K bytes of weights. A rank that is out
sends nothing. At a meeting each of the n ranks sends 2 (n-1)/n K bytes for the weights, and
64 (n-1) bytes for the table of times. If no rank is slow, the table of times is the only extra
message, compared with plain local SGD.
A snapshot needs all ranks at the same step, so minidl.elastic refuses LocalSGD(without=).
Source: Chen et al. 2016, "Revisiting distributed synchronous SGD" (arXiv 1604.00981). In this
paper, too, no rank waits for the slowest ranks. But the rule here is our own.
Test: tests/parallel/data/test_without.py   Used by: local_sgd.py
"""

import math

import numpy as np

from minidl.comm import ring
from minidl.comm.observe.stragglers import slower

MOST_ROUNDS = 8  # all ranks meet again after at most this many rounds


class Turns:
    """Decides which ranks take part in the coming round. ratio: the argument `without` of LocalSGD.
    Raises ValueError if ratio is not above 1."""

    def __init__(self, t, ratio):
        if ratio <= 1:
            raise ValueError(f"rank {t.rank}: LocalSGD wants without= above 1 (a slow rank's time "
                             f"divided by the median time); got {ratio}")
        self.t, self.ratio = t, ratio
        self.out, self.until = frozenset(), 0  # ranks in `out` stay out until round `until` ends
        # when this rank's round began, in seconds; None in the first round, which is not measured
        self.began = None
        self.ended = None  # the step at which the other ranks finished
        self._groups = {}

    def end(self, rounds, average, last=False):
        """Ends a round. The ranks that take part average their weights by average(t, contributes,
        n). rounds: the Rounds object of LocalSGD. average: the method LocalSGD.average. last: True
        if finish() calls this function. Then all ranks meet. Raises RuntimeError if the other ranks
        have finished."""
        t = self.t
        if self.ended is not None:
            raise RuntimeError(f"rank {t.rank}: the other ranks finished at step {self.ended}; "
                               "this rank still trains. Use a loop `while local.rounds.n_steps < "
                               "n`. n_steps also counts the steps that the other ranks made while "
                               "this rank was left out")
        inside = [rank for rank in range(t.size) if rank not in self.out]
        with t.named("a round of local SGD"):  # ranks in step() and in finish() need the same label
            if self.out and t.rank in inside and rounds.n_rounds < self.until and not last:
                average(self._group(inside), True, len(inside))
            else:
                self._meet(rounds, average, inside, last)
        self.began = t.time()

    def _meet(self, rounds, average, inside, last):
        """A meeting: all ranks exchange their times, and get the mean weights. Then each rank
        decides which ranks are out in the next rounds. inside: a list of the ranks that are not
        out. Only their weights count in the mean. For the other arguments see end()."""
        pace = 0.0 if self.began is None else (self.t.time() - self.began) / rounds.period
        table = np.zeros((self.t.size, 4))
        table[self.t.rank] = pace, rounds.n_steps, rounds.n_rounds, last
        table = ring.all_reduce(self.t, table.reshape(-1)).reshape(-1, 4)
        average(self._group([*inside, *sorted(self.out)]), self.t.rank in inside, len(inside))
        paces, lasts = table[:, 0], table[:, 3]
        rounds.n_steps, rounds.n_rounds = map(int, table[inside[0], 1:3])
        rounds.since = 0
        if lasts.any():
            self.ended = rounds.n_steps
        measured = paces.all() and not lasts.any()
        ratios = slower(dict(enumerate(paces.tolist())), self.ratio) if measured else {}
        self.out = frozenset(ratios)
        self.until = rounds.n_rounds + min(MOST_ROUNDS, math.ceil(max(ratios.values(), default=0)))

    def _group(self, ranks):
        """Returns a transport for the ranks in the list `ranks`. The first of these ranks must
        contribute, because it broadcasts its buffers to the others."""
        ranks = tuple(ranks)
        if ranks == tuple(range(self.t.size)):
            return self.t
        if ranks not in self._groups:
            self._groups[ranks] = self.t.subgroup(ranks)
        return self._groups[ranks]
