"""Records the times of work on a GPU by the GPU's clock, without making a step wait for the GPU.

    host     |launch|launch|launch|  ...              a launch returns at once
    stream       e kernel e|e kernel e|e kernel e     e: an event: the GPU records the time when it
                                                         comes to this place of the stream

The profile puts an event on the current stream before each operator and each kernel of minidl, and
another event after it. This costs the host some microseconds. The events are read when the profile
has ended. If the GPU is waiting for work, the first event gets the time of the launch.

The GPU's times are converted to the host's clock in the same way as times of another computer
(clocks.py). At the start and at the end of the profile, the host records an event and waits for it.
So the event is between two times of the host's clock. This is done ROUNDS times, and only the
shortest round counts. The error is half of this round's time, plus RESOLUTION_S for each event that
is read.

A lane holds the work of one task on one stream. "cuda:0 stream 0" is the null stream. The other
streams get numbers in the order of their first use, for example "cuda:0 stream 1, communication".
When a GPU is first used inside of the profile, the host waits for this GPU once. While a graph is
captured (cuda/cuda_graph.py), no events are recorded.

Source: CUDA Runtime API, "Event Management".   Used by: record.py, instrument.py
Test: tests/profile/test_device.py
"""

import sys

from minidl.profile.clocks import Pair, line

ROUNDS = 30
RESOLUTION_S = 0.5e-6  # seconds: the resolution of cudaEventElapsedTime
FAR_MS = 4096.0  # above this, the float32 of cudaEventElapsedTime is coarser than RESOLUTION_S


class Devices:
    """The GPUs that the profiled code has used. clock: a function that returns the host's time in
    seconds."""

    def __init__(self, clock):
        self.clock, self.met = clock, {}

    def here(self):
        """Returns the Device for the current GPU. Returns None if there is no GPU, or if CuPy is
        not imported yet."""
        cupy = sys.modules.get("cupy")
        if cupy is None or not (self.met or cupy.cuda.is_available()):
            return None
        number = cupy.cuda.runtime.getDevice()
        if number not in self.met:
            self.met.setdefault(number, Device(cupy.cuda, number, self.clock))
        return self.met[number]

    def read(self, record):
        """Adds the lanes of all GPUs to the Record."""
        for device in self.met.values():
            if device.spans:
                with device.cuda.Device(device.number):
                    device.read(record)


class Device:
    """One GPU. marks: its events, [[event, name of the lane, the event's time in seconds]]. spans:
    its work. Each span has two marks: the mark before the work, and the mark after it."""

    def __init__(self, cuda, number, clock):
        self.cuda, self.number, self.clock = cuda, number, clock
        self.base, self.first = self._look()
        self.marks, self.spans = [], []
        self.streams = {0: (0, None)}  # {address: (number, stream)}; the dict keeps a stream alive

    def _look(self):
        """Records an event now. Returns (the event, a Pair with the event's time by the host's
        clock)."""
        found = []
        for _ in range(ROUNDS):
            event, here = self.cuda.Event(), self.clock()
            event.record(self.cuda.Stream.null)
            event.synchronize()
            there = self.clock()
            found.append((event, Pair((here + there) / 2, 0.0, (there - here) / 2)))
        return min(found, key=lambda look: look[1].error_s)

    def watch(self, lane):
        """Starts a span for the GPU work that this task launches from now on. Returns a function:
        done(kind, name, module, detail) ends the span."""
        stream, launched = self.cuda.get_current_stream(), self.clock()
        if stream.is_capturing():
            return lambda *span: None
        number, _ = self.streams.setdefault(stream.ptr, (len(self.streams), stream))
        name = f"cuda:{self.number} stream {number}"
        name += f", {lane.name}" if lane is not lane.profile.lane else ""
        begin = self._mark(name, stream)

        def done(*span):
            self.spans.append((name, launched, begin, self._mark(name, stream), *span))

        return done

    def _mark(self, lane, stream):
        """Records an event now. Returns [event, lane, 0.0]. _read() replaces 0.0 by the event's
        time."""
        mark = [self.cuda.Event(), lane, 0.0]
        mark[0].record(stream)
        self.marks.append(mark)
        return mark

    def read(self, record):
        """Waits for the GPU. Adds its lanes to the Record, with times by the host's clock."""
        self.cuda.Device(self.number).synchronize()
        event, last = self._look()
        n_read = self._read([*self.marks, end := [event, None, 0.0]])
        here, _, error_s = line(self.first, last._replace(theirs=end[2]))
        error_s += n_read * RESOLUTION_S
        for lane, launched, begin, done, kind, name, module, detail in self.spans:
            _, moments = record.devices.setdefault(lane, (error_s, []))
            moments.append(launched)
            record.lanes.setdefault(lane, []).append(
                (kind, name, here(begin[2]), here(done[2]), module, detail))

    def _read(self, marks):
        """Sets the time of each mark, in seconds since self.base. In each lane the times do not
        decrease. Returns the largest number of events that were read to compute one time."""
        base, base_s, latest, n_read = self.base, 0.0, {}, 2
        for mark in marks:
            ms = self.cuda.get_elapsed_time(base, mark[0])
            mark[2] = latest[mark[1]] = max(base_s + ms / 1e3, latest.get(mark[1], 0.0))
            if ms > FAR_MS:
                base, base_s, n_read = mark[0], mark[2], n_read + 1
        return n_read
