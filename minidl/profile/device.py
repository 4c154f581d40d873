"""What ran on a GPU, from when to when, by its own clock; nobody waits for it in a step.

    host     |launch|launch|launch|  ...              a launch returns at once
    stream       e kernel e|e kernel e|e kernel e     e: an event, that is: the GPU notes the time
                                                         when it comes to this place of the stream

Around each operator and each kernel of ours two events are recorded on the current stream, which
costs the host some microseconds, and all are read when the profile has ended. Where the GPU waits
for the host, the time begins at the first event, with the launch.

The GPU's clock and the host's become one as those of two computers do (clocks.py): at the beginning
and at the end an event is recorded and waited for, so it lies between two looks at the host's
clock. The shortest of ROUNDS counts. The error: half of that, and RESOLUTION_S for each event read.

A lane is what one task did on one stream: "cuda:0 stream 0" (the null stream; others are numbered
as they come), "cuda:0 stream 1, communication". A GPU that the profile first meets in a step is
waited for there, once. While a graph is captured (cuda/cuda_graph.py) there are no events.

Source: CUDA Runtime API, "Event Management".   Used by: record.py, taps.py
Test: tests/profile/test_device.py
"""

import sys

from minidl.profile.clocks import Pair, line

ROUNDS = 30
RESOLUTION_S = 0.5e-6  # of cudaEventElapsedTime
FAR_MS = 4096.0  # its result is a float of 32 bits: beyond this coarser than that


class Devices:
    """The GPUs that a profile has met. clock: seconds of the host."""

    def __init__(self, clock):
        self.clock, self.met = clock, {}

    def here(self):
        """The current Device; None where there is no GPU, or nothing has used it yet."""
        cupy = sys.modules.get("cupy")
        if cupy is None or not (self.met or cupy.cuda.is_available()):
            return None
        number = cupy.cuda.runtime.getDevice()
        if number not in self.met:
            self.met.setdefault(number, Device(cupy.cuda, number, self.clock))
        return self.met[number]

    def read(self, record):
        """Add all lanes to the Record."""
        for device in self.met.values():
            if device.spans:
                with device.cuda.Device(device.number):
                    device.read(record)


class Device:
    """One GPU: its events, and between which of them what ran."""

    def __init__(self, cuda, number, clock):
        self.cuda, self.number, self.clock = cuda, number, clock
        self.base, self.first = self._look()
        self.marks, self.spans = [], []
        self.streams = {0: (0, None)}  # address -> its number, and the stream, so that it stays

    def _look(self):
        """(an event, its moment by the host's clock as a Pair)."""
        found = []
        for _ in range(ROUNDS):
            event, here = self.cuda.Event(), self.clock()
            event.record(self.cuda.Stream.null)
            event.synchronize()
            there = self.clock()
            found.append((event, Pair((here + there) / 2, 0.0, (there - here) / 2)))
        return min(found, key=lambda look: look[1].error_s)

    def watch(self, lane):
        """What this task launches from now on, until done(kind, name, module, detail) is called."""
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
        """[an event recorded now, its lane, and later its time]."""
        mark = [self.cuda.Event(), lane, 0.0]
        mark[0].record(stream)
        self.marks.append(mark)
        return mark

    def read(self, record):
        """Wait for the GPU, and add its lanes to the Record, in the host's time."""
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
        """The seconds of each mark since the base, a lane's in their order. Returns how many such
        figures are in the sum for a mark, at most, and for the last."""
        base, base_s, latest, n_read = self.base, 0.0, {}, 2
        for mark in marks:
            ms = self.cuda.get_elapsed_time(base, mark[0])
            mark[2] = latest[mark[1]] = max(base_s + ms / 1e3, latest.get(mark[1], 0.0))
            if ms > FAR_MS:
                base, base_s, n_read = mark[0], mark[2], n_read + 1
        return n_read
