"""Records what a rank did, and when, as spans of time.

    lane        span (lane, label, start, end), seconds
    backward    |== layer 2 ==|== layer 1 ==|== layer 0 ==|
    the wire                  |= bucket 0 =|  |=== bucket 1 ===|
                                                                time -->
A lane does one thing after another. Several lanes work at the same time. `busy` and `overlap`
return sums of times, which can be compared with a formula. `trace` writes a file. Open this file at
ui.perfetto.dev, or in Chrome at chrome://tracing.

    timeline = Timeline()                        on every rank
    start = t.time()                             any clock, also a modelled one
    ...
    timeline.add("backward", "layer 2", start, t.time())
    timeline.trace("trace.json")                 on rank 0; other timelines may follow as arguments

`recording` is the lane of the running profile (profile/record.py). Collectives write into it. It is
None if no profile runs.

Source: the Trace Event Format (Google), complete events.
Test: tests/test_timeline.py   Used by: parallel/zero/lanes.py   Tutorial: 12_offload
"""

import json
from contextvars import ContextVar
from pathlib import Path
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
        """Returns the number of seconds in which the lane worked."""
        return sum(end - start for where, _, start, end in self.spans if where == lane)

    def overlap(self, a, b):
        """Returns the number of seconds in which both lanes worked at the same time."""
        return sum(max(0.0, min(x.end, y.end) - max(x.start, y.start))
                   for x in self.spans if x.lane == a for y in self.spans if y.lane == b)

    def trace(self, path, *others):
        """Writes a trace file. self has the spans of rank 0, `others` are the timelines of ranks 1,
        2, .... The trace shows each rank as a process, and its lanes as threads, in the order in
        which the lanes first worked."""
        events = []
        for rank, timeline in enumerate([self, *others]):
            row = {"ph": "M", "pid": rank}
            events.append({**row, "name": "process_name", "args": {"name": f"rank {rank}"}})
            rows = {}
            for lane, label, start, end in timeline.spans:
                if lane not in rows:
                    rows[lane] = len(rows)
                    events.append({**row, "tid": rows[lane], "name": "thread_name",
                                   "args": {"name": lane}})
                # ts and dur are in microseconds.
                events.append({"name": label, "cat": lane, "ph": "X", "pid": rank,
                               "tid": rows[lane], "ts": 1e6 * start, "dur": 1e6 * (end - start)})
        Path(path).write_text(json.dumps({"traceEvents": events}))
