"""Rounds of local SGD that do not wait for a straggler: LocalSGD(..., without=2.0).

    rank 0   | round 1 | mean | round 2 | mean of 0, 1 | round 3 | mean of 0, 1 | round 4
    rank 1   | round 1 | mean | round 2 | mean of 0, 1 | round 3 | mean of 0, 1 | round 4
    rank 2   | round 1 | mean | its round 2, twice as long ..... | gets it, too | round 4

The rule. Where all ranks meet they tell each other what they computed a step since the mean before;
who took `without` times the median or more is out of the next rounds. The others take their mean,
the sum of p of n ranks over p, and meet it again when its round must be over, by its own pace (at
most MOST_ROUNDS rounds later; should it come later still, they wait). What it trained meanwhile
began at a mean that is old, so it counts with weight 0: it gets the mean of the others, their
number of steps, and is in again, unless its pace says that it is as slow as before. While somebody
is out nobody else is sent out. Only time decides, and all ranks have the same table of it, so all
have the same bits at every meeting.

    while local.rounds.n_steps < 1000:        not a `for`: a rank that was out has done fewer steps
        ...
        local.step()
    local.finish()                            all ranks: whoever is out comes in

Sent, with K bytes of weights: 2 (p-1)/p K a round by those who are in and nothing by who is out;
where all meet 2 (n-1)/n K, and 64 (n-1) for the table, the only thing that it costs where no rank
is slow. Snapshots want ranks of one step: minidl.elastic refuses it.
Source: Chen et al. 2016, "Revisiting distributed synchronous SGD" (arXiv 1604.00981): not to wait
for the slowest. The rule is ours.
Test: tests/parallel/data/test_without.py   Used by: local_sgd.py
"""

import math

import numpy as np

from minidl.comm import ring
from minidl.comm.observe.stragglers import slower

MOST_ROUNDS = 8  # a rank that one long pause has sent out waits no longer for the next meeting


class Turns:
    """Who is in the coming round; the ranks that are in have the same."""

    def __init__(self, t, ratio):
        if ratio <= 1:
            raise ValueError(f"rank {t.rank}: wanted without= a ratio above 1; got {ratio}")
        self.t, self.ratio = t, ratio
        self.out, self.until = frozenset(), 0  # these ranks, to the end of that round
        self.began = None  # of this rank's round; None: steps that are no measure, as the first
        self.ended = None  # at which step the others have finished
        self._groups = {}

    def end(self, rounds, average, last=False):
        """The end of a round: average(t, contributes, n) by those who are in it. last: of all."""
        t = self.t
        if self.ended is not None:
            raise RuntimeError(f"rank {t.rank}: the ranks have finished at step {self.ended}. "
                               "Train `while local.rounds.n_steps < n`, not a number of steps")
        inside = [rank for rank in range(t.size) if rank not in self.out]
        with t.named("a round of local SGD"):  # in step() on some ranks, in finish() on others
            if self.out and t.rank in inside and rounds.n_rounds < self.until and not last:
                average(self._group(inside), True, len(inside))
            else:
                self._meet(rounds, average, inside, last)
        self.began = t.time()

    def _meet(self, rounds, average, inside, last):
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
        """Those ranks' transport; who contributes comes first, and gives buffers to the others."""
        ranks = tuple(ranks)
        if ranks == tuple(range(self.t.size)):
            return self.t
        if ranks not in self._groups:
            self._groups[ranks] = self.t.subgroup(ranks)
        return self._groups[ranks]
