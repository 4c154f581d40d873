"""A profile: what each task did, from when to when, written down while it happens.

    lane "main"            |input|forward ......|backward ..........|collective|optimizer| step ends
    lane "communication"                            |collective|  |collective|
                                                                                      time -->
A lane is what one task does, one thing inside another. `timeline.recording` holds the lane of the
running task, so threads and simulated ranks do not mix; instrument.py writes into it. A span is a
tuple:

    kind     input, forward, backward, collective, message, wait, optimizer, offload, snapshot;
             or kernel, launch, module, user: these lie around or inside of the others
    name     linear, ring.all_reduce, ...          start, end   seconds of this rank's clock
    module   blocks.0.up                           detail       of each kind its own

What runs on a GPU has lanes of its own (device.py): forward, backward, kernel, by the GPU's clock.
A step ends where the first optimizer's `step` returns, or at `p.step()` once that is called. At the
end rank 0 has all ranks' records, in its own time (clocks.py).

Test: tests/profile/test_record.py
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

from minidl.comm import objects
from minidl.comm.labels import current_label
from minidl.comm.observe.places import spot, user_line
from minidl.memory.ledger import Ledger
from minidl.mode import running
from minidl.profile import clocks, device, instrument, page, picture, report, summary, trace
from minidl.timeline import recording

MAIN = "main"  # the lane of the task that opened the block


@dataclass
class Record:
    """One rank's, as rank 0 gets it."""

    rank: int = 0
    begin: float = 0.0
    end: float = 0.0
    lanes: dict = field(default_factory=dict)  # name -> [span]
    steps: list = field(default_factory=list)  # the moments in which steps ended
    messages: list = field(default_factory=list)  # ("send" or "receive", key, time, bytes)
    queue: list = field(default_factory=list)  # (time, 1 or -1: a job more, or less)
    memory: list = field(default_factory=list)  # (time, {kind: bytes})
    # a GPU's lane -> (how far its times may be off this rank's, [when the host launched each])
    devices: dict = field(default_factory=dict)
    error_s: float = 0.0  # how far its times may be off rank 0's
    drift: float = 0.0  # seconds per second, before they were aligned


class Lane:
    """Where one task writes its spans. module: the path of the module that runs."""

    def __init__(self, profile, name):
        self.profile, self.name, self.clock = profile, name, profile.clock
        self.synchronize = profile.synchronize
        self.spans = profile.record.lanes.setdefault(name, [])
        self.add = self.spans.append
        self.module, self.names = "", {}  # of modules, since the outermost was called
        self.moved = None  # of the running collective: [bytes sent, received, messages, {peer}]
        self.muted = 0  # messages are not counted: they are inside of one that is, or a Watch's

    def beside(self, name):
        """The lane of another task of this rank."""
        return Lane(self.profile, name)

    def timed(self, kind, name, method, *args, **options):
        """method(*args, **options), as a span."""
        start = self.clock()
        try:
            return method(*args, **options)
        finally:
            self.add((kind, name, start, self.clock(), self.module, None))

    def watch(self):
        """done(kind, name, module, detail): what ran on the GPU from here to there is a span."""
        return self.profile.devices.here().watch(self)

    def queued(self, n):
        """So many jobs more wait for the background, or are done."""
        self.profile.record.queue.append((self.clock(), n))

    def collective(self, fn, t, args, kwargs):
        """fn(t, *args, **kwargs), a collective, and how long it took, with the wait of a Watch."""
        start, before = self.clock(), self.moved
        self.muted += 1
        try:
            t.entering(fn, args, kwargs)
        finally:
            self.muted -= 1
        self.moved = moved = [0, 0, 0, set()]
        try:
            return fn(t, *args, **kwargs)
        finally:
            self.moved = before
            line = user_line(sys._getframe(1))
            detail = (*moved[:3], tuple(sorted(moved[3])), t.ranks,
                      self.profile.number((self.name, t.ranks)), spot(*line) if line else "")
            self.add(("collective", current_label(), start, self.clock(), self.module, detail))


class Profile:
    """What was recorded; `ranks`: a Record of each rank, on rank 0, elsewhere of this one alone."""

    def __init__(self, t=None, clock=time.perf_counter, synchronize=False):
        self.t, self.clock, self.synchronize = t, clock, synchronize
        self.record = Record(0 if t is None else t.rank)
        self.ranks, self._numbers, self.by_hand = [self.record], defaultdict(count), False
        self.optimizer = self.model = self.ledger = None
        self.devices = device.Devices(clock)
        self.lane = Lane(self, MAIN)

    def __repr__(self):
        n, ranks = len(self.record.steps), len(self.ranks)
        return (f"<Profile of {n} step{'s' * (n != 1)} on {ranks} rank{'s' * (ranks != 1)}: "
                "print(p.report()) shows where their time goes>")

    def step(self):
        """A step ends here, and no longer where the optimizer's does."""
        if not self.by_hand:
            self.by_hand = True
            self.record.steps.clear()
        self.ended()

    def forget(self):
        """The model and the optimizer so far are not held: others come, where ranks heal."""
        self.optimizer = self.model = None
        self.lane.names.clear()

    def ended(self):
        self.record.steps.append(self.clock())
        self.mark_memory()

    def mark_memory(self):
        """Add the states of the model and of the optimizer, as far as they have been seen."""
        if self.ledger is not None:
            self.ledger.watched = self.model, self.optimizer, ()
            self.ledger.mark("step")

    @contextmanager
    def span(self, name):
        """`with p.span("augment"):` is in the trace; what it is about stays in the rows."""
        start, lane = self.clock(), recording.get()
        yield
        lane.add(("user", name, start, self.clock(), lane.module, None))

    def input(self, batches) -> Iterator[Any]:
        """The same batches; waiting for one is input, as it is of minidl.data's loaders."""
        return instrument.timed_input(iter(batches))

    def number(self, key):
        """0, 1, 2, ... of each key: the same of the same message or collective on all its ranks."""
        return next(self._numbers[key])

    # -- when it has ended

    @cached_property
    def summary(self):
        """The figures of the report: summary.py says which."""
        return summary.of(self.ranks)

    def report(self, tr=str):
        """The figures as a text; tr translates a sentence or a word of it."""
        return report.text(self.summary, tr)

    def trace(self, path):
        """Write one file of all ranks for ui.perfetto.dev or chrome://tracing."""
        trace.write(path, self.ranks, self.summary)

    def html(self, path):
        """Write a page that needs nothing but a browser."""
        page.write(path, self.ranks, self.summary)

    def picture(self, path):
        """Write a PNG: the ranks' lanes in the last steps, and the roofline."""
        picture.write(path, self.ranks, self.summary)


@contextmanager
def profile(t=None, *, memory=False, synchronize=False, clock=time.perf_counter):
    """`with minidl.profile() as p:` records what this task does in the block, and p reports it.

    t            a transport: all its ranks enter and leave the block together, and rank 0 gets
                 all records; None: this rank alone
    memory       also every array, by kind (memory/ledger.py): some 10 us an operator
    synchronize  wait for the GPU after every operator: else its work counts where Python waits
    clock        seconds of this rank; a test's may be wrong"""
    p = Profile(t, clock, synchronize)
    if t is not None:
        own = t.subgroup(range(t.size))  # its messages never meet the program's
        first = clocks.measure(own, clock)
    p.devices.here()
    with instrument.applied():
        p.record.begin = clock()
        token = recording.set(p.lane)
        try:
            p.ledger = TimedLedger(p) if memory else None
            with running(ledger=p.ledger) if memory else nullcontext():
                yield p
        finally:
            recording.reset(token)
            p.record.end = clock()
    p.devices.read(p.record)
    if t is not None:  # not after an error: the others may never come
        last, records = clocks.measure(own, clock), objects.gather(own, p.record)
        if t.rank == 0:
            p.ranks = [*map(clocks.aligned, records, first, last)]


class TimedLedger(Ledger):
    """The memory ledger, which notes when: every new peak, else at most once a millisecond."""

    def __init__(self, profile):
        self._profile, self._next = profile, 0.0
        super().__init__(None, None, ())

    def _write(self, label):
        total, now = self.now.total(), self._profile.clock()
        if total > self.peak_bytes or now >= self._next:
            self.peak_bytes, self._next = max(total, self.peak_bytes), now + 1e-3
            self._profile.record.memory.append((now, {k: n for k, n in self.now.items() if n}))
