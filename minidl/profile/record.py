"""Records a profile: what each task does, and when it starts and ends.

    lane "main"            |input|forward ......|backward ..........|collective|optimizer| step ends
    lane "communication"                            |collective|  |collective|
                                                                                      time -->
A lane holds the spans of one task. Spans may be nested. `timeline.recording` holds the lane of the
running task, so the spans of threads and of simulated ranks do not mix. instrument.py adds spans to
this lane. A span is a tuple:

    kind     input, forward, backward, collective, message, wait, optimizer, offload, snapshot.
             Spans of the kinds kernel, launch, module and user are around or inside other spans
    name     linear, ring.all_reduce, ...          start, end   seconds of this rank's clock
    module   blocks.0.up                           detail       each kind has other details

Work on a GPU has lanes of its own, with times by the GPU's clock (device.py). The kinds of their
spans are forward, backward and kernel. A step ends when step() of the first optimizer returns. If
the program calls p.step(), a step ends there instead. At the end rank 0 has the records of all
ranks, with times by its own clock (clocks.py).

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

MAIN = "main"  # the name of the lane of the task that opened the profile's `with` block


@dataclass
class Record:
    """What was recorded on one rank. The other ranks send their Records to rank 0. All times are in
    seconds."""

    rank: int = 0
    begin: float = 0.0
    end: float = 0.0
    lanes: dict = field(default_factory=dict)  # {name: [span]}
    steps: list = field(default_factory=list)  # the times when steps ended
    messages: list = field(default_factory=list)  # ("send" or "receive", key, time, bytes)
    queue: list = field(default_factory=list)  # (time, 1 if a job was added or -1 if a job is done)
    memory: list = field(default_factory=list)  # (time, {kind: bytes})
    # devices: {name of a GPU's lane: (the error of the lane's times, [for each span, the time at
    # which the host launched the work])}
    devices: dict = field(default_factory=dict)
    error_s: float = 0.0  # the error of this rank's times after conversion to rank 0's clock
    drift: float = 0.0  # seconds that this rank's clock gains on rank 0's clock in one second


class Lane:
    """The list of spans of one task. module: the path of the module (nn.Module) that runs now, or
    "" outside of all modules."""

    def __init__(self, profile, name):
        self.profile, self.name, self.clock = profile, name, profile.clock
        self.synchronize = profile.synchronize
        self.spans = profile.record.lanes.setdefault(name, [])
        self.add = self.spans.append
        self.module, self.names = "", {}  # names: {module: its path}
        self.moved = None  # in a collective: [bytes sent, bytes received, messages, {peer}]
        # muted: if it is not 0, messages are not counted, because they are part of another message
        # or of a Watch.
        self.muted = 0

    def beside(self, name):
        """Returns the lane with this name. The lane belongs to another task of this rank."""
        return Lane(self.profile, name)

    def timed(self, kind, name, method, *args, **options):
        """Calls method(*args, **options) and adds a span for this call. Returns the method's
        result."""
        start = self.clock()
        try:
            return method(*args, **options)
        finally:
            self.add((kind, name, start, self.clock(), self.module, None))

    def watch(self):
        """Starts a span of work on the GPU. Returns a function: done(kind, name, module, detail)
        ends the span."""
        return self.profile.devices.here().watch(self)

    def queued(self, n):
        """Records a change in the number of background jobs. n: 1 if a job was added, -1 if a job
        is done."""
        self.profile.record.queue.append((self.clock(), n))

    def collective(self, fn, t, args, kwargs):
        """Calls the collective fn(t, *args, **kwargs) and adds a span for this call. The span
        includes the wait of a Watch. Returns the collective's result."""
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
    """A profile. ranks: a list of Records. Rank 0 has the Records of all ranks. Another rank has
    only its own."""

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
        """Ends a step here. After the first call of p.step(), the optimizer's step() does not end a
        step."""
        if not self.by_hand:
            self.by_hand = True
            self.record.steps.clear()
        self.ended()

    def forget(self):
        """Forgets the model and the optimizer, so that their memory can be freed. elastic/heal.py
        calls forget() before it makes a new model and a new optimizer."""
        self.optimizer = self.model = None
        self.lane.names.clear()

    def ended(self):
        self.record.steps.append(self.clock())
        self.mark_memory()

    def mark_memory(self):
        """Adds the memory of the model and the optimizer to the ledger, if they are known."""
        if self.ledger is not None:
            self.ledger.watched = self.model, self.optimizer, ()
            self.ledger.mark("step")

    @contextmanager
    def span(self, name):
        """`with p.span("augment"):` adds a span for this block to the trace. The report's rows do
        not change."""
        start, lane = self.clock(), recording.get()
        yield
        lane.add(("user", name, start, self.clock(), lane.module, None))

    def input(self, batches) -> Iterator[Any]:
        """Yields the batches unchanged. The report adds the time of each wait for a batch to its
        row "input". The waits for the loaders of minidl.data are in this row, too."""
        return instrument.timed_input(iter(batches))

    def number(self, key):
        """Returns how many times number() was called before with this key: 0, then 1, 2, ... So a
        message or a collective has the same number on all ranks that take part."""
        return next(self._numbers[key])

    # -- after the block

    @cached_property
    def summary(self):
        """Returns a dict with all numbers of the report. summary.py computes it."""
        return summary.of(self.ranks)

    def report(self, tr=str):
        """Returns the report, a text. tr: a function that translates a sentence or a word."""
        return report.text(self.summary, tr)

    def trace(self, path):
        """Writes one trace file with all ranks, for ui.perfetto.dev or chrome://tracing."""
        trace.write(path, self.ranks, self.summary)

    def html(self, path):
        """Writes the profile as an HTML page, for any browser."""
        page.write(path, self.ranks, self.summary)

    def picture(self, path):
        """Writes a PNG: the ranks' lanes in the last steps, and the roofline. Needs matplotlib."""
        picture.write(path, self.ranks, self.summary)


@contextmanager
def profile(t=None, *, memory=False, synchronize=False, clock=time.perf_counter):
    """`with minidl.profile() as p:` records what this task does in the block. p is a Profile.

    t            a transport. All its ranks must enter and leave the block together, and rank 0 gets
                 all records. If None, only this rank is recorded
    memory       if True, the memory of every array is recorded, too, by kind (memory/ledger.py).
                 This costs some 10 us for each operator
    synchronize  if True, the host waits for the GPU after every operator, so the report adds the
                 wait to the row of this operator ("forward" or "backward"). If False, the report
                 adds the wait to the row in which the host waits, which may be the row of later
                 work
    clock        a function that returns the time in seconds"""
    p = Profile(t, clock, synchronize)
    if t is not None:
        own = t.subgroup(range(t.size))  # its messages do not mix with the program's messages
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
    if t is not None:  # skipped after an error, because the other ranks may have ended
        last, records = clocks.measure(own, clock), objects.gather(own, p.record)
        if t.rank == 0:
            p.ranks = [*map(clocks.aligned, records, first, last)]


class TimedLedger(Ledger):
    """A memory ledger that also adds its values, and the time, to the record. It adds each new peak
    of the memory, and other values at most once in a millisecond."""

    def __init__(self, profile):
        self._profile, self._next = profile, 0.0
        super().__init__(None, None, ())

    def _write(self, label):
        total, now = self.now.total(), self._profile.clock()
        if total > self.peak_bytes or now >= self._next:
            self.peak_bytes, self._next = max(total, self.peak_bytes), now + 1e-3
            self._profile.record.memory.append((now, {k: n for k, n in self.now.items() if n}))
