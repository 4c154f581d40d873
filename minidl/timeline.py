"""Who did what, from when to when: spans of time, for sums and pictures.

    lane        span (lane, label, start, end), seconds
    backward    |== layer 2 ==|== layer 1 ==|== layer 0 ==|
    the wire                  |= bucket 0 =|  |=== bucket 1 ===|
                                                                time -->
A lane does one thing after the other; lanes work beside each other. `busy` and `overlap` are sums
that a formula can be compared with. A trace for Perfetto, of a whole step on all ranks, is the
profile's (profile/trace.py).

    timeline = Timeline()                        on every rank
    start = t.time()                             any clock: a modelled one, too
    ...
    timeline.add("backward", "layer 2", start, t.time())
    timeline.busy("backward")                    seconds

`recording` is the lane of the running profile (profile/record.py), into which a collective writes;
None, as nearly always, where nobody measures.

Test: tests/test_timeline.py   Used by: parallel/zero/lanes.py   Tutorial: 12_offload
"""

from contextvars import ContextVar
from typing import NamedTuple

recording = ContextVar("the lane that this task writes into", default=None)


class Span(NamedTuple):
    lane: str
    label: str
    start: float
    end: float


class Timeline:
    """The spans of one rank, in the order in which they were added."""

    def __init__(self):
        self.spans = []

    def add(self, lane, label, start, end):
        self.spans.append(Span(lane, label, start, end))

    def busy(self, lane):
        """Seconds in which the lane worked."""
        return sum(end - start for where, _, start, end in self.spans if where == lane)

    def overlap(self, a, b):
        """Seconds in which both lanes worked."""
        return sum(max(0.0, min(x.end, y.end) - max(x.start, y.start))
                   for x in self.spans if x.lane == a for y in self.spans if y.lane == b)
