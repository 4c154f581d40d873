"""Requests as they come: a load for a Batcher, and the same rule on a simulated clock.

    arrivals = poisson(rate=200, n=1000, seed=0)       times in s, exponential gaps
    latencies = offer(batcher, x, arrivals)            measured: a real clock, a real plan
    batches, ends = simulate(arrivals, cost, 32, 1e-3) modelled: cost(n) seconds for a batch of n

Arrivals that nobody coordinates are a Poisson process: gaps are exponential, and the past says
nothing about the next. An open load does not wait for answers: a slow server sees its queue grow. A
client that waits before it asks again would hide that.

Source: Little 1961; Schroeder, Wierman & Harchol-Balter 2006 (open and closed loads).
Test: tests/infer/test_batcher.py   Tutorial: tutorials/20_inference.py
"""

import time

import numpy as np


def poisson(rate, n, seed=0):
    """The times in s of n arrivals, `rate` a second, from the first gap on."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def offer(batcher, requests, arrivals):
    """Submit requests[i] at arrivals[i] seconds from now, whatever is not answered yet; the
    latencies in s, from when a request was due: NaN of one that was refused or failed."""
    start, done, futures = time.perf_counter(), {}, []
    for i, (request, due) in enumerate(zip(requests, arrivals, strict=True)):
        if (left := start + due - time.perf_counter()) > 0:
            time.sleep(left)
        try:
            future = batcher.submit(request)
        except RuntimeError:  # too many wait
            continue
        future.add_done_callback(lambda f, i=i: done.update({i: time.perf_counter()}))
        futures.append((i, future))
    latencies = np.full(len(arrivals), np.nan)
    for i, future in futures:
        if future.exception() is None:
            while i not in done:  # the callback comes just after the result
                time.sleep(0)
            latencies[i] = done[i] - start - arrivals[i]
    return latencies


def simulate(arrivals, cost, max_batch, max_delay):
    """What a Batcher does with these arrivals, if a batch of n takes cost(n) seconds and all else
    nothing: ([(begin, end, n)] of the batches, the time at which each request is answered)."""
    batches, ends, free, i = [], np.empty(len(arrivals)), 0.0, 0
    while i < len(arrivals):
        full = arrivals[i + max_batch - 1] if i + max_batch <= len(arrivals) else np.inf
        begin = max(free, min(arrivals[i] + max_delay, full))
        n = min(int(np.searchsorted(arrivals, begin, "right")) - i, max_batch)
        free = begin + cost(n)
        batches.append((begin, free, n))
        ends[i:i + n] = free
        i += n
    return batches, ends


def inside(arrivals, ends):
    """L: how many requests are inside, on average from the first arrival to the last answer, by
    walking through the times at which one comes or goes."""
    times = np.concatenate([arrivals, ends])
    order = np.argsort(times, kind="stable")
    count = np.cumsum(np.repeat([1, -1], len(arrivals))[order])
    gaps = np.diff(times[order])
    return float(count[:-1] @ gaps / gaps.sum())
