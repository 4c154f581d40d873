"""The binomial tree: reduce or broadcast in log2 n steps, and not in n-1 steps.

    the steps of a reduce, with 8 ranks

    step 0   0 ◄─ 1    2 ◄─ 3    4 ◄─ 5    6 ◄─ 7
    step 1   0 ◄────── 2         4 ◄────── 6
    step 2   0 ◄──────────────── 4

For a broadcast, read the picture from the bottom up, and turn every arrow around. In each step
every rank that has the array sends it to a rank that does not have it.

A reduce has a step for each distance d = 1, 2, 4, ... In this step, two ranks d apart form a pair.
The higher rank sends its array to the lower rank, and is finished. The lower rank adds it to its
own array. So in each step half of the remaining ranks finish.

A reduce and a broadcast of K bytes on n ranks take 2 log2 n steps, and each message has K bytes.
This is best for short arrays: the time of a short message hardly depends on its length. For long
arrays the ring is better: there a rank sends less than 2K bytes.

Paper: Thakur, Rabenseifner & Gropp, "Optimization of Collective Communication Operations in MPICH",
2005. This page is the plain version. The real one, minidl/comm/tree.py, adds: any root, other
operations than the sum, a check that all ranks make the same call, and a barrier, which is an
all-reduce of an empty array.
"""

import numpy as np


def distances(n):
    """Returns a list of the distances in the tree of n ranks: 1, 2, 4, ..."""
    result = []
    d = 1
    while d < n:
        result.append(d)
        d = 2 * d
    return result


def reduce(t, x):
    """Adds the x of all ranks. Rank 0 gets the sum in its x, other ranks get a partial sum."""
    for d in distances(t.size):
        if t.rank % (2 * d) == d:
            t.send(x, t.rank - d)
            return
        if t.rank + d < t.size:
            x += t.recv(np.empty_like(x), t.rank + d)


def broadcast(t, x):
    """Copies rank 0's x into the x of every rank."""
    for d in reversed(distances(t.size)):
        if t.rank % (2 * d) == d:
            t.recv(x, t.rank - d)
        elif t.rank % (2 * d) == 0 and t.rank + d < t.size:
            t.send(x, t.rank + d)


def all_reduce(t, x):
    """Sums x over all ranks, in place. Returns x."""
    reduce(t, x)
    broadcast(t, x)
    return x


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        x = np.array([10**t.rank])
        reduce(t, x)
        after_reduce = x.copy()
        broadcast(t, x)
        return after_reduce, x

    for rank, (after_reduce, x) in enumerate(simulate(4, example)):
        print("rank", rank, " after reduce", after_reduce, " after broadcast", x)
