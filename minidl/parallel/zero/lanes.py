"""Lanes: queues of jobs that run beside each other, one job at a time in each, and who waits.

    device   |-- backward 2 --|-- backward 1 --|-- backward 0 --|. . . . . .|-- next forward
    down                      |g2|             |g1|             |g0|
    host                                                        |u2|u1 |u0|
    up                                                             |w2|w1|w0|
                                                                            time -->
A job starts when its lane is free, when the jobs it comes `after` have ended, and not before the
device has come to where it was submitted. `down` and `up` are the two directions of a link with a
latency alpha and beta seconds per byte (comm/transport/links.py); `bytes` counts what went over
each.

    Modelled    jobs run at once, in order; only the clock is a model: the same trace every time
    Threads     a thread for each lane and the real clock; with a link, copies are slowed to it

Lanes are a Timeline (minidl/timeline.py): `spans` has every job, in seconds from the beginning.

Test: tests/parallel/zero/test_lanes.py   Used by: offload.py   Tutorial: tutorials/12_offload.py
"""

import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from minidl.comm.transport.links import Link
from minidl.timeline import Timeline

PCIE = Link(10e-6, 1 / 16e9)  # PCIe 3.0 with 16 lanes, and the start of a copy: round figures
# An Adam update reads and writes 28 bytes an element, and writes 2; a host's memory: some 20 GB/s.
UPDATE_S = 30 / 20e9


class Lanes(Timeline):
    """What both kinds have."""

    def __init__(self, link):
        super().__init__()
        self.link, self.bytes = link, Counter()

    def copy(self, lane, n_bytes, fn, after=(), label=""):
        """A job that moves n_bytes over the link, "down" or "up"."""
        self.bytes[lane] += n_bytes
        latency, seconds_per_byte = self.link or (0.0, 0.0)
        return self.run(lane, fn, after, label, n_bytes * seconds_per_byte, latency)


class Modelled(Lanes):
    """link: (alpha, beta); update_s: seconds to update one element on the host."""

    def __init__(self, link: tuple[float, float] = PCIE, update_s=UPDATE_S):
        super().__init__(Link(*link))
        self.update_s = update_s
        self.free = defaultdict(float)  # lane -> when it has done what it was given

    def time(self):
        """Where the device is."""
        return self.free["device"]

    def run(self, lane, fn, after=(), label="", seconds=0.0, latency=0.0):
        """fn() now, in the lane's next `seconds`; returns when it is done, for `after` and wait."""
        start = max(self.free[lane], self.time(), *after, 0.0)
        fn()
        self.free[lane] = start + seconds
        self.add(lane, label, start, start + seconds)
        return start + seconds + latency

    def update(self, n_elems, fn, after=(), label=""):
        return self.run("host", fn, after, label, n_elems * self.update_s)

    def compute(self, seconds, label=""):
        """The device works for so long."""
        self.run("device", lambda: None, (), label, seconds)

    def wait(self, jobs):
        """The device waits for them."""
        self.free["device"] = max(self.time(), *jobs, 0.0)

    def close(self):
        pass


class Threads(Lanes):
    """link: (alpha, beta) that copies are slowed to; None: as fast as they are."""

    def __init__(self, link=None):
        super().__init__(link and Link(*link))
        self.start = time.perf_counter()
        self.workers = {}

    def time(self):
        return time.perf_counter() - self.start

    def run(self, lane, fn, after=(), label="", seconds=0.0, latency=0.0):
        if lane not in self.workers:
            self.workers[lane] = ThreadPoolExecutor(1, f"lane {lane}")
        return self.workers[lane].submit(self._work, lane, fn, tuple(after), label, seconds,
                                         latency)

    def _work(self, lane, fn, after, label, seconds, latency):
        self.wait(after)
        start = self.time()
        fn()
        while (rest := start + seconds + latency - self.time()) > 0:
            time.sleep(rest)
        self.add(lane, label, start, self.time())

    def update(self, n_elems, fn, after=(), label=""):
        return self.run("host", fn, after, label)

    def compute(self, seconds, label=""):
        start = self.time()
        time.sleep(seconds)
        self.add("device", label, start, self.time())

    def wait(self, jobs):
        """Return when they are done; raises the first error of one."""
        for job in jobs:
            job.result()

    def close(self):
        for worker in self.workers.values():
            worker.shutdown()
