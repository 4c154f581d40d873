"""What a parameter server does with a push, and which worker may pull: two functions, one Rule.

    rule          which worker may pull                what a push does
    SYNC          one that is ahead of none            waits for all; their mean is one update
    ASYNC         any                                  an update at once
    bounded(s)    one at most s steps ahead (SSP)      an update at once
    GEO           any                                  a difference of weights, added at once

    steps       worker 2   1---2---3---4 waits          bounded(2): a worker that has pushed 4 times
                worker 3   1-----------2------          waits until all have pushed at least twice

SYNC is data parallelism: gradients weighted by samples are added in rank order, divided, then cast,
the very bits of `average_gradients` with the all-reduce of minidl/plain/naive.py.

Sources: Ho et al. 2013 (NIPS), the bound; Dean et al. 2012 (NIPS), asynchronous SGD; Geo is
PaddlePaddle's name for pushing differences of weights.
Test: tests/parallel/server/test_staleness.py   Tutorial: tutorials/10_parameter_server.py
"""

from typing import Callable, NamedTuple

import numpy as np

from minidl.backend import accumulate_dtype
from minidl.parallel.data.bucket import weight


class Rule(NamedTuple):
    """may_pull(clocks, worker): clocks is {worker: pushes made} of those still here.
    apply(server): called after each request, turns pushes in server.inbox into updates."""

    name: str
    may_pull: Callable
    apply: Callable
    goes_on: bool = True  # without a worker that failed, or a straggler (Server's slower=)
    differences: bool = False  # pushes hold differences of weights, not gradients
    stalest: Callable = None  # stalest(n workers): no push is more updates stale

    def __repr__(self):
        return self.name


def lead(clocks, worker):
    """How many steps a worker is ahead of the slowest."""
    return clocks[worker] - min(clocks.values())


def each_push(server):
    """Every push is an update."""
    for values, _ in server.inbox.values():
        server.update(values)
    server.inbox.clear()


def mean_of_all(server):
    """One update with the mean over all who are still here, weighted by their samples.

    As data parallelism does it (bucket.py): weigh, add in rank order, divide, cast."""
    if not server.inbox or any(worker not in server.inbox for worker in server.clocks):
        return
    n, total = len(server.inbox), sum(n_samples for _, n_samples in server.inbox.values())
    mean = None
    for _, (values, n_samples) in sorted(server.inbox.items()):
        values = values.astype(accumulate_dtype(values.dtype), copy=False)
        weight(values, n_samples, total, n)
        mean = values if mean is None else np.add(mean, values, out=mean)
    mean /= n
    server.inbox.clear()
    server.update(mean.astype(server.shard.dtype, copy=False))


def add_difference(server):
    """Adds differences to the weights: Geo, as PaddlePaddle names it."""
    for values, _ in server.inbox.values():
        for p, part in zip(server.shard.params, server.shard.parts(values)):
            p.array += part
            p.version += 1
        server.version += 1
    server.inbox.clear()


SYNC = Rule("sync", lambda clocks, worker: lead(clocks, worker) == 0, mean_of_all, goes_on=False)
ASYNC = Rule("async", lambda clocks, worker: True, each_push)
GEO = Rule("geo", lambda clocks, worker: True, add_difference, differences=True)


def bounded(s):
    """Stale synchronous parallel: a worker more than s steps ahead of the slowest waits.

    Then a push is at most (N-1)(2s+1) updates stale: while a worker computes, any other goes from s
    behind it at the most to s+1 ahead."""
    return Rule(f"ssp({s})", lambda clocks, worker: lead(clocks, worker) <= s, each_push,
                stalest=lambda n: (n - 1) * (2 * s + 1))
