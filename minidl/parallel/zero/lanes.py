"""Lanes: queues of jobs. The lanes run at the same time; each lane runs one job at a time.

    device   |-- backward 2 --|-- backward 1 --|-- backward 0 --|. . . . . .|-- next forward
    down                      |g2|             |g1|             |g0|
    host                                                        |u2|u1 |u0|
    up                                                             |w2|w1|w0|
                                                                            time -->
g: gradients, u: updates of weights, w: new weights. A job starts when its lane is free, the jobs in
`after` have ended, and the device has reached the point where the job was submitted. `down` (device
to host) and `up` are the two directions of a link with a latency of alpha seconds, and beta seconds
per byte (comm/transport/links.py). `bytes` counts the bytes sent in each direction.

    Modelled    runs each job when it is submitted. The clock is modelled, so every run gives the
                same times
    Threads     has a thread for each lane, and uses the real clock. If a link is given, copies are
                slowed down to the speed of the link

Lanes is a Timeline (minidl/timeline.py). `spans` has the begin and the end of every job, in seconds
since the start.

Test: tests/parallel/zero/test_lanes.py   Used by: offload.py   Tutorial: tutorials/12_offload.py
"""

import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from minidl.comm.transport.links import Link
from minidl.timeline import Timeline

PCIE = Link(10e-6, 1 / 16e9)  # 10 us to start a copy, then 16 GB/s: about PCIe 3.0 with 16 lanes
# An Adam update moves 30 bytes for each element; a host's memory moves about 20 GB/s.
UPDATE_S = 30 / 20e9


class Lanes(Timeline):
    """The base class of Modelled and Threads. The attribute `bytes` is {"down": n, "up": n}, where
    n is the number of bytes that were copied so far."""

    def __init__(self, link):
        super().__init__()
        self.link, self.bytes = link, Counter()

    def copy(self, lane, n_bytes, fn, after=(), label=""):
        """Submits fn() as a job that moves n_bytes over the link. Returns the job. wait() takes a
        list of jobs.

        lane: "down" (device to host) or "up" (host to device). after: a list of jobs that must end
        before this job starts. label: the job's name in `spans`."""
        self.bytes[lane] += n_bytes
        latency, seconds_per_byte = self.link or (0.0, 0.0)
        return self.run(lane, fn, after, label, n_bytes * seconds_per_byte, latency)


class Modelled(Lanes):
    """Runs each job when it is submitted, and computes the job's time from a model.

    link: (alpha in seconds, beta in seconds per byte). update_s: seconds to update one element on
    the host."""

    def __init__(self, link: tuple[float, float] = PCIE, update_s=UPDATE_S):
        super().__init__(Link(*link))
        self.update_s = update_s
        self.free = defaultdict(float)  # lane -> the time in seconds when it has done all its jobs

    def time(self):
        """Returns the modelled time of the device, in seconds."""
        return self.free["device"]

    def run(self, lane, fn, after=(), label="", seconds=0.0, latency=0.0):
        """Runs fn() now, and counts the lane as busy for `seconds`. Returns the job, which is a
        number: the modelled time when the job is done. after, label: as in copy(). latency: the
        seconds from the end of the lane's work until the job is done."""
        start = max(self.free[lane], self.time(), *after, 0.0)
        fn()
        self.free[lane] = start + seconds
        self.add(lane, label, start, start + seconds)
        return start + seconds + latency

    def update(self, n_elems, fn, after=(), label=""):
        """Submits fn() as a job of the host. fn() is an optimizer's update of n_elems elements.
        Returns the job. after, label: as in copy()."""
        return self.run("host", fn, after, label, n_elems * self.update_s)

    def compute(self, seconds, label=""):
        """Keeps the device busy for `seconds`."""
        self.run("device", lambda: None, (), label, seconds)

    def wait(self, jobs):
        """The device waits until the jobs are done."""
        self.free["device"] = max(self.time(), *jobs, 0.0)

    def close(self):
        pass


class Threads(Lanes):
    """Runs each lane in a thread, by the real clock.

    link: (alpha in seconds, beta in seconds per byte). Copies are slowed down to this speed. With
    None copies run at full speed."""

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
        """Waits until the jobs are done. Raises the first error of a job."""
        for job in jobs:
            job.result()

    def close(self):
        for worker in self.workers.values():
            worker.shutdown()
