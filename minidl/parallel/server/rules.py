"""A Rule decides when a parameter server applies a push, and which worker may pull.

    rule          which worker may pull                what a push does
    SYNC          a worker with as few pushes as the   waits for the pushes of all workers. Then the
                  slowest worker                       server makes one update with their mean
    ASYNC         any worker                           makes an update when it arrives
    bounded(s)    a worker at most s steps ahead of    makes an update when it arrives
                  the slowest worker (SSP)
    GEO           any worker                           adds a difference of weights when it arrives

    steps       worker 2   1---2---3---4 waits          bounded(1): a worker that has pushed 4 times
                worker 3   1-----------2------          waits until all have pushed at least 3 times

SYNC computes the same as data parallelism. It multiplies each worker's gradient by a weight, which
depends on the worker's number of samples. Then it adds the products in the order of ranks, divides
the sum, and casts the result. The result has the same bits as `average_gradients` with the
all-reduce of minidl/plain/naive.py.

Sources: Ho et al. 2013 (NIPS), the bound; Dean et al. 2012 (NIPS), asynchronous SGD. The name Geo
is from PaddlePaddle.
Test: tests/parallel/server/test_staleness.py   Tutorial: tutorials/10_parameter_server.py
"""

from typing import Callable, NamedTuple

import numpy as np

from minidl.backend import accumulate_dtype
from minidl.parallel.data.bucket import weight


class Rule(NamedTuple):
    """Holds the functions of a rule.

    may_pull(clocks, worker)   returns True if the worker may pull. clocks: {worker: number of its
                               pushes}, for the workers that have not left
    apply(server)              is called after each request. It turns pushes in server.inbox into
                               updates
    """

    name: str
    may_pull: Callable
    apply: Callable
    goes_on: bool = True  # True: training can go on without a failed or slow worker
    differences: bool = False  # pushes hold differences of weights, not gradients
    stalest: Callable = None  # stalest(n workers) returns the largest possible staleness of a push

    def __repr__(self):
        return self.name


def lead(clocks, worker):
    """Returns how many steps a worker is ahead of the slowest worker."""
    return clocks[worker] - min(clocks.values())


def each_push(server):
    """Makes one update for every push."""
    for values, _ in server.inbox.values():
        server.update(values)
    server.inbox.clear()


def mean_of_all(server):
    """Makes one update with the mean over all workers that have not left, weighted by their
    numbers of samples. Does nothing until all these workers have pushed.

    The steps are as in data parallelism (bucket.py): multiply each gradient by its weight, add in
    the order of ranks, divide, cast."""
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
    """Adds the pushed differences to the weights. PaddlePaddle calls this Geo."""
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
    """Returns the rule "stale synchronous parallel": a worker waits if it is more than s steps
    ahead of the slowest worker.

    With N workers a push is then at most (N-1)(2s+1) updates stale. While a worker computes, each
    other worker can make 2s+1 pushes. So a worker that was s steps behind can get s+1 steps
    ahead."""
    return Rule(f"ssp({s})", lambda clocks, worker: lead(clocks, worker) <= s, each_push,
                stalest=lambda n: (n - 1) * (2 * s + 1))
