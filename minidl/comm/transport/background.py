"""One thread communicates in the background of the computation. Jobs run in the order of submit().

    main        backward | submit(b0) ... | submit(b1) ....... | b0.wait() b1.wait() | step
    background             |== all_reduce b0 ==|== all_reduce b1 ==|

Test: tests/comm/transport/test_background.py   Tutorial: tutorials/08_overlap.py

All ranks must submit the same jobs in the same order, because messages are matched to jobs only by
their order. The jobs use a duplicate of the transport, so the main thread may communicate at the
same time. The thread (a greenlet in the simulator) ends when no job is left. It does not keep a
process alive.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from minidl.comm.observe.places import submitted_at, user_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from minidl.comm.transport.protocol import Transport


class Background:
    """Runs collectives one after another in a background thread, while the caller continues.

    with Background(t) as background:
        job = background.submit(ring.all_reduce, x)     # ring.all_reduce(duplicate of t, x)
        ...                                             # do not read or write x here
        total = job.wait()

    All ranks of t must make a Background. transport: a duplicate of t, which the jobs use."""

    def __init__(self, t: Transport):
        self.transport = t.subgroup(range(t.size))
        self.transport.innermost.longest_nap = 2e-3  # while the thread sleeps, the caller can work
        self._waiting = deque()
        self._running = self._closed = False
        self._failure = None  # the first job that failed
        self._last = None
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], *args: Any) -> Job:
        """Queues `fn(transport, *args)`. Returns a Job at once. Raises RuntimeError after
        close()."""
        job = Job(self.transport, fn, args)
        with self._lock:
            if self._closed:
                raise RuntimeError(
                    f"rank {self.transport.rank}: this Background was closed. Make another one.")
            self._waiting.append(job)
            self._last = job
            if not self._running:
                self._running = True
                self.transport.spawn(self._work)
        return job

    def close(self) -> None:
        """Waits for all jobs. Raises the error of the first job that failed, if no wait() has
        raised this error. Later submit() calls raise RuntimeError."""
        self._closed = True
        if self._last is not None:
            self._last._done.wait()
        if self._failure is not None and not self._failure.seen:
            self._failure.wait()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        # After an error on this rank the other ranks may never answer: do not wait for them.
        if kind is None:
            self.close()
        self._closed = True

    def _work(self):
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                job = self._waiting.popleft()
            job._run(self._failure)
            if job.error is not None and self._failure is None:
                self._failure = job


class Job:
    """A call that submit() has queued. wait() returns the result of the call."""

    def __init__(self, t, fn, args):
        self._t, self._fn, self._args = t, fn, args
        # The job's messages have the label that is set now. Reports show the line that called
        # submit.
        self._context = contextvars.copy_context()
        self._context.run(submitted_at.set, user_line(sys._getframe(2)))  # 2: the caller of submit
        self._submitted, self._done = t.event(), t.event()
        self._submitted.set()
        self.result = self.error = None
        self.seen = False  # True if a wait() has raised the error

    def wait(self) -> Any:
        """Waits for the end of the call. Returns its result, or raises its error."""
        self._done.wait()
        if self.error is not None:
            self.seen = True
            raise self.error
        return self.result

    def done(self) -> bool:
        """Returns True if wait() would return at once."""
        return self._done.is_set()

    def _run(self, failure):
        self._submitted.wait()  # never waits, but moves a modelled clock to the time of submit()
        try:
            if failure is not None:
                raise RuntimeError(
                    f"rank {self._t.rank}: this job was not run, because an earlier background "
                    "job failed. The ranks may no longer run the same jobs") from failure.error
            self.result = self._context.run(self._fn, self._t, *self._args)
        except Exception as error:
            self.error = error
        self._fn = self._args = None  # release the arrays
        self._done.set()
