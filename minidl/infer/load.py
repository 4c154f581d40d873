"""Makes a load of requests for a Batcher, and models the Batcher on a simulated clock.

    arrivals = poisson(rate=200, n=1000, seed=0)       times in s, exponential gaps
    latencies = offer(batcher, x, arrivals)            measured: a real clock, a real plan
    batches, ends = simulate(arrivals, cost, 32, 1e-3) modelled: n requests take cost(n) seconds

Independent arrivals are a Poisson process. The gaps between them are exponential, and past arrivals
do not change the next gap. An open load does not wait for answers, so the queue of a slow server
grows. A client that waits for each answer before its next request hides this queue.

Source: Little 1961; Schroeder, Wierman & Harchol-Balter 2006 (open and closed loads).
Test: tests/infer/test_batcher.py   Tutorial: tutorials/20_inference.py
"""

import time

import numpy as np


def poisson(rate, n, seed=0):
    """Returns an array with the times in s of n arrivals. The first arrival is one gap after time
    0. rate: the mean number of arrivals per second."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def offer(batcher, requests, arrivals):
    """Submits requests[i] at arrivals[i] seconds from now, without waiting for earlier answers.
    Returns the latencies in s, counted from the time at which each request was due. The latency of
    a request that was refused or failed is NaN."""
    start, done, futures = time.perf_counter(), {}, []
    for i, (request, due) in enumerate(zip(requests, arrivals, strict=True)):
        if (left := start + due - time.perf_counter()) > 0:
            time.sleep(left)
        try:
            future = batcher.submit(request)
        except RuntimeError:  # the request is refused, because too many requests wait
            continue
        future.add_done_callback(lambda f, i=i: done.update({i: time.perf_counter()}))
        futures.append((i, future))
    latencies = np.full(len(arrivals), np.nan)
    for i, future in futures:
        if future.exception() is None:
            while i not in done:  # the callback runs a moment after the result is set
                time.sleep(0)
            latencies[i] = done[i] - start - arrivals[i]
    return latencies


def simulate(arrivals, cost, max_batch, max_delay):
    """Models a Batcher with these arrivals (in s, ascending). A batch of n requests takes cost(n)
    seconds, and all other work takes no time. max_batch, max_delay: as in Batcher. Returns
    (batches, ends). batches: a list with (begin, end, n) of each batch. ends: an array with the
    time in s at which each request is answered."""
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
    """Returns L, the mean number of requests inside the Batcher, from the first arrival to the last
    answer. arrivals, ends: for each request the times in s at which it comes and is answered. The
    number of requests changes only at these times, so the function visits no other time."""
    times = np.concatenate([arrivals, ends])
    order = np.argsort(times, kind="stable")
    count = np.cumsum(np.repeat([1, -1], len(arrivals))[order])
    gaps = np.diff(times[order])
    return float(count[:-1] @ gaps / gaps.sum())
