"""Dynamic batching: joins single requests into batches.

    with infer.Batcher(plan, max_batch=32, max_delay=1e-3) as b:
        future = b.submit(x[0])              one request, without the batch's dimension
        y = future.result()

    arrivals   | |  |   ||| ||  |
    the plan        [== 3 ==][=== 6 ===]

A batch begins when the plan is free and one of three conditions is true. The first is that
max_batch requests wait. The second is that the oldest request has waited max_delay seconds. The
third is that the Batcher is closing.

A batch of n requests costs less than n batches of one request, because the weights are read once.
While the plan runs, new requests wait for the next batch.

    L = lambda W    (Little 1961)    L: the mean number of requests inside the Batcher. lambda: the
                                     requests per second. W: the mean seconds that a request is
                                     inside. `report` measures L, lambda and W.

Source: Crankshaw et al. 2017 (Clipper).   Test: tests/infer/test_batcher.py   Load: load.py
Tutorial: tutorials/20_inference.py
"""

import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from minidl import backend
from minidl.infer.program import Plan
from minidl.mode import no_grad


@dataclass(frozen=True)
class Report:
    """Counts and times of a Batcher since its first request.

    n_requests: requests that were answered or cancelled.
    n_failed: requests that were answered with an error.
    n_batches: batches that ran.
    n_rows: rows that the plan computed. Rows that only fill up a batch are counted, too.
    elapsed_s: seconds from the first request to this report.
    busy_s: seconds in which the plan ran.
    inside_s: the number of requests inside the Batcher, integrated over time, in s.
    latency_s: the sum of the latencies of all requests, in s.

    inside: L, the mean number of requests inside the Batcher.
    rate: lambda, the requests per second.
    latency: W, the mean seconds from a request to its answer.
    batch: the mean number of requests in a batch."""

    n_requests: int
    n_failed: int
    n_batches: int
    n_rows: int
    elapsed_s: float
    busy_s: float
    inside_s: float
    latency_s: float

    inside = property(lambda self: self.inside_s / self.elapsed_s)  # L of Little's law
    rate = property(lambda self: self.n_requests / self.elapsed_s)  # lambda of Little's law, 1/s
    latency = property(lambda self: self.latency_s / self.n_requests)  # W of Little's law, s
    batch = property(lambda self: self.n_requests / self.n_batches)


class Batcher:
    """Collects requests into batches. A separate thread runs the batches.

    plans: a Plan, a list of Plans for batches of different sizes, or one function. The function
    takes arrays (n, ...) with the inputs of n requests. A batch runs in the smallest plan that is
    large enough. If the plan has more rows than the batch, copies of the batch's last row fill the
    other rows.
    max_batch: the most requests in a batch. The default is the batch size of the largest plan. If
    `plans` is a function, max_batch must be given.
    max_delay: the most seconds that a request waits for other requests.
    max_waiting: the most requests that may wait. If this many requests wait already, submit()
    refuses a new request.
    clock: a function that returns the time in s."""

    def __init__(self, plans, max_batch=None, max_delay=1e-3, max_waiting=1024,
                 clock=time.perf_counter):
        plans = plans if isinstance(plans, (list, tuple)) else [plans]
        are_plans = [isinstance(p, Plan) for p in plans]
        if not plans or len(plans) > 1 and not all(are_plans):
            raise TypeError("Batcher: want a Plan, a list of Plans, or one function of arrays; got "
                            f"{', '.join(type(p).__name__ for p in plans) or 'an empty list'}")
        self.plans = sorted((rows_of(p), i) for i, p in enumerate(plans)) if are_plans[0] else []
        self.plans = [(n, plans[i]) for n, i in self.plans]
        wanted = [[(v.shape[1:], v.dtype) for v in p.graph.inputs] for _, p in self.plans]
        self.wanted = wanted[0] if wanted else None
        for its in wanted:
            if its != self.wanted:
                raise ValueError("Batcher: all plans must take requests of one shape and dtype; "
                                 "got plans for different shapes or dtypes. Trace one model with "
                                 "batches of several sizes")
        largest = self.plans[-1][0] if self.plans else max_batch
        self.max_batch = largest if max_batch is None else max_batch
        if not self.max_batch or not 1 <= self.max_batch <= largest:
            raise ValueError(f"Batcher: got max_batch={max_batch}; want an integer from 1 "
                             f"{f'to {largest}, the rows of the largest plan' * bool(self.plans)}"
                             f"{'' if self.plans else 'on, because the Batcher got a function'}")
        if max_delay < 0:
            raise ValueError(f"Batcher: got max_delay={max_delay}; want at least 0 seconds")
        self.function = None if self.plans else plans[0]
        self.max_delay, self.max_waiting, self.clock = max_delay, max_waiting, clock
        self._queue, self._change, self._closing = deque(), threading.Condition(), False
        self._inside, self._first, self._last = 0, None, None
        self._sums = dict.fromkeys("n_requests n_failed n_batches n_rows busy_s inside_s "
                                   "latency_s".split(), 0)
        self._thread = threading.Thread(target=self._serve, name="minidl-batcher", daemon=True)
        self._thread.start()

    def submit(self, *inputs):
        """Submits one request. Returns a concurrent.futures.Future, which will hold the model's
        result for this request.

        inputs: arrays or Tensors without the batch's dimension. They are copied. Raises TypeError
        if the inputs do not fit the plan. Raises RuntimeError if max_waiting requests wait already,
        or if the Batcher is closed."""
        arrays = [np.array(backend.array_of(x)) for x in inputs]
        got = [(a.shape, a.dtype) for a in arrays]
        if self.wanted is not None and got != self.wanted:
            def text(pairs):
                return ", ".join(f"{d}{list(s)}" for s, d in pairs)
            raise TypeError(f"Batcher: got a request of {text(got)}; the plan wants "
                            f"{text(self.wanted)}. Leave out the batch's dimension")
        future = Future()
        with self._change:
            if self._closing:
                raise RuntimeError("Batcher: this Batcher is closed; make a new one")
            if len(self._queue) >= self.max_waiting:
                raise RuntimeError(f"Batcher: {len(self._queue)} requests are waiting, and "
                                   "max_waiting does not allow more. Requests come faster than the "
                                   "plan answers. Send fewer requests, or raise max_waiting")
            now = self._count(1)
            self._queue.append((now, arrays, future))
            self._change.notify_all()
        return future

    def close(self):
        """Answers all waiting requests, then ends the thread. A second call does nothing."""
        with self._change:
            self._closing = True
            self._change.notify_all()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def report(self):
        """Returns the Report so far, or None before the first request."""
        with self._change:
            if self._first is None:
                return None
            self._count(0)
            return Report(elapsed_s=self._last - self._first, **self._sums)

    def _count(self, change):
        """Updates the number of requests inside the Batcher, and the integral of this number over
        time. Returns the present time in s. The caller must hold the lock. change: n if n requests
        come, -n if n requests leave, 0 to update only the integral."""
        now = self.clock()
        if self._first is None:
            self._first = self._last = now
        self._sums["inside_s"] += self._inside * (now - self._last)
        self._inside, self._last = self._inside + change, now
        return now

    def _serve(self):
        while batch := self._next():
            # After this call a future cannot be cancelled.
            running = [r for r in batch if r[2].set_running_or_notify_cancel()]
            begin, rows, answers = self.clock(), 0, []
            if running:
                rows, answers = self._answers([arrays for _, arrays, _ in running])
            with self._change:
                end = self._count(-len(batch))
                self._sums["n_requests"] += len(batch)
                self._sums["n_failed"] += sum(not ok for ok, _ in answers)
                self._sums["n_batches"] += bool(running)
                self._sums["n_rows"] += rows
                self._sums["busy_s"] += end - begin
                self._sums["latency_s"] += sum(end - came for came, _, _ in batch)
            for (_, _, future), (ok, answer) in zip(running, answers, strict=True):
                (future.set_result if ok else future.set_exception)(answer)

    def _next(self):
        """Waits until the next batch may begin. Returns its requests: [(time, arrays, future)].
        Returns [] if the Batcher is closed and no request waits."""
        with self._change:
            while not self._queue and not self._closing:
                self._change.wait()
            while len(self._queue) < self.max_batch and not self._closing:
                left = self._queue[0][0] + self.max_delay - self.clock()
                if left <= 0:
                    break
                self._change.wait(left)
            return [self._queue.popleft() for _ in range(min(len(self._queue), self.max_batch))]

    def _answers(self, requests):
        """Runs a batch. Returns (n_rows, answers). n_rows: the number of rows that the plan
        computed. answers: a list with (True, result) or (False, error) for each request. If a batch
        fails, each request runs alone. So a bad index in one request fails only this request.
        requests: the arrays of each request."""
        n = len(requests)
        try:
            size, run = next(((size, p) for size, p in self.plans if size >= n), (n, self.function))
            columns = [np.stack([*column, *[column[-1]] * (size - n)])
                       for column in zip(*requests, strict=True)]
            with no_grad():
                result = run(*columns)
            parts = result if isinstance(result, tuple) else (result,)
            if any(len(y) != size for y in parts):
                raise ValueError(f"Batcher: for {size} requests the function returned arrays of "
                                 f"shape {', '.join(str(tuple(y.shape)) for y in parts)}; want one "
                                 "row for each request")
            rows = [tuple(y[i] for y in parts) for i in range(n)]
            return size, [(True, r if isinstance(result, tuple) else r[0]) for r in rows]
        except BaseException as error:  # every kind of error must end the caller's wait
            if n == 1:
                return 0, [(False, error)]
        alone = [self._answers([r]) for r in requests]
        return sum(rows for rows, _ in alone), [answer for _, (answer,) in alone]


def rows_of(plan):
    """Returns the batch size of a Plan: the first dimension of all its inputs and results."""
    sizes = {v.shape[:1] for v in (*plan.graph.inputs, *plan.graph.outputs)}
    if len(sizes) != 1 or sizes == {()}:
        raise ValueError("Batcher: the plan's inputs and results have no common first dimension. "
                         "Want the batch's size as the first dimension of all inputs and results; "
                         f"got first dimensions {sorted(sizes)}. Trace the model with a batch")
    return sizes.pop()[0]
