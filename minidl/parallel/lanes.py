"""Lanes: things that work beside each other, each doing one job after the other, and who waits.

    device   |-- backward 2 --|-- backward 1 --|-- backward 0 --|. . . . . .|-- next forward
    down                      |g2|             |g1|             |g0|
    host                                                        |u2|u1 |u0|
    up                                                             |w2|w1|w0|
                                                                            time -->
A job starts when its lane is free, when the jobs it comes `after` have ended, and not before the
device has come to where it was submitted. `down` and `up` are the two directions of a link with a
latency alpha and beta seconds per byte (comm/links.py); `bytes` counts what went over each.

    Modelled    jobs run at once, in order; only the clock is a model: the same trace every time
    Threads     a thread for each lane and the real clock; with a link, copies are slowed to it

`spans` has (lane, label, start, end) of every job, seconds from the beginning.

Test: tests/parallel/test_offload.py   Used by: offload.py   Tutorial: tutorials/11_offload.py
"""

import json
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from minidl.comm.links import Link

PCIE = Link(10e-6, 1 / 16e9)  # PCIe 3.0 with 16 lanes, and the start of a copy: round figures
# An Adam update reads and writes 28 bytes an element, and writes 2; a host's memory: some 20 GB/s.
UPDATE_S = 30 / 20e9


class Lanes:
    """What both kinds have."""

    def __init__(self, link):
        self.link, self.bytes, self.spans = link, Counter(), []

    def copy(self, lane, n_bytes, fn, after=(), label=""):
        """A job that moves n_bytes over the link, "down" or "up"."""
        self.bytes[lane] += n_bytes
        return self.run(lane, fn, after, label, *self.cost(n_bytes))

    def cost(self, n_bytes):
        """(seconds on the wire, seconds that the first byte travels)."""
        return (n_bytes * self.link.beta, self.link.alpha) if self.link else (0.0, 0.0)

    def busy(self, lane):
        """Seconds in which the lane worked."""
        return sum(end - start for where, _, start, end in self.spans if where == lane)

    def overlap(self, a, b):
        """Seconds in which both lanes worked."""
        spans = {x: [s[2:] for s in self.spans if s[0] == x] for x in (a, b)}
        return sum(max(0.0, min(end, stop) - max(start, begin))
                   for start, end in spans[a] for begin, stop in spans[b])

    def trace(self, path):
        """Write the spans as a Chrome trace, for ui.perfetto.dev."""
        rows = {lane: i for i, lane in enumerate(dict.fromkeys(span[0] for span in self.spans))}
        events = [{"name": label, "cat": lane, "ph": "X", "pid": 0, "tid": rows[lane],
                   "ts": 1e6 * start, "dur": 1e6 * (end - start)}
                  for lane, label, start, end in self.spans]
        events += [{"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": lane}}
                   for lane, row in rows.items()]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"traceEvents": events}))


class Modelled(Lanes):
    """link: (alpha, beta); update_s: seconds to update one element on the host."""

    def __init__(self, link=PCIE, update_s=UPDATE_S):
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
        self.spans.append((lane, label, start, start + seconds))
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
        self.spans.append((lane, label, start, self.time()))

    def update(self, n_elems, fn, after=(), label=""):
        return self.run("host", fn, after, label)

    def compute(self, seconds, label=""):
        start = self.time()
        time.sleep(seconds)
        self.spans.append(("device", label, start, self.time()))

    def wait(self, jobs):
        """Return when they are done; raises the first error of one."""
        for job in jobs:
            job.result()

    def close(self):
        for worker in self.workers.values():
            worker.shutdown()
