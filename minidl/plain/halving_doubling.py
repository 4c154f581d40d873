"""Halving and doubling: an all-reduce in 2 log2 n steps, with as many bytes as the ring.

    halving     ranks n/2 apart are partners. Each rank keeps one half of its array, sends the other
                half to its partner, and adds the half that it receives. Then it does the same with
                the half that it kept, and a partner n/4 apart. In the last step the partners are
                neighbours. Here are three of 8 ranks. # marks the part that a rank still holds:

                                  4 apart         2 apart         1 apart
                rank 0  |########|      |####....|      |##......|      |#.......|
                rank 1  |########|  ──► |####....|  ──► |##......|  ──► |.#......|
                rank 4  |########|      |....####|      |....##..|      |....#...|

    doubling    the same steps backwards: partners send each other all that they hold. So each rank
                holds twice as much after every step. At the end each rank holds the whole sum

For an array of K bytes a rank sends K/2 + K/4 + ... + K/n in the halving, and the same number of
bytes in the doubling. Together this is 2 (n-1)/n K, as in the ring. But there are 2 log2 n
messages, and not 2 (n-1).

This works if n is a power of two. Otherwise let p be the largest power of two below n. Rank p + i
first sends its array to rank i. Rank i adds this array to its own array. Only the first p ranks go
on. At the end rank i sends the sum to rank p + i.

Papers: Rabenseifner, "Optimization of Collective Reduction Operations", 2004; Thakur et al.,
"Optimization of Collective Communication Operations in MPICH", 2005. This page is the plain
version. The real one, minidl/comm/halving_doubling.py, adds: arrays of any shape; other operations
than the sum; for short arrays, a form in which partners exchange whole arrays, with fewer messages
and more bytes; and a formula for the bytes that are sent.
"""

import numpy as np


def halve(t, x, p):
    """Sums x over the first p ranks. Each of these ranks gets one part of the sum.

    Returns a list with an entry for each step: (the part that this rank kept, the part that it sent
    to its partner, the partner)."""
    steps = []
    kept = x
    far = p // 2
    while far > 0:
        # The ranks form groups of 2 * far neighbours. In a group, each rank of the first half has
        # its partner in the second half.
        partner = t.rank + far if t.rank % (2 * far) < far else t.rank - far
        lower, upper = np.array_split(kept, 2)  # views of x
        kept, sent = (lower, upper) if t.rank < partner else (upper, lower)
        # sendrecv(outgoing, to, incoming, source) fills `incoming`, and returns it
        kept += t.sendrecv(sent, partner, np.empty_like(kept), partner)
        steps.append((kept, sent, partner))
        far = far // 2
    return steps


def double(t, steps):
    """Does the steps of halve() backwards: each part that was sent away comes back as a sum."""
    for kept, sent, partner in reversed(steps):
        t.sendrecv(kept, partner, sent, partner)


def all_reduce(t, x):
    """Sums x, a vector, over all ranks, in place. Returns x."""
    p = 1
    while 2 * p <= t.size:
        p = 2 * p
    if t.rank >= p:
        t.send(x, t.rank - p)
        return t.recv(x, t.rank - p)
    has_extra = t.rank + p < t.size
    if has_extra:
        x += t.recv(np.empty_like(x), t.rank + p)
    double(t, halve(t, x, p))
    if has_extra:
        t.send(x, t.rank + p)
    return x


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        x = np.array([1, 10, 100, 1000]) * (t.rank + 1)
        steps = halve(t, x, p=4)
        own = steps[-1][0].copy()
        double(t, steps)
        return own, x

    for rank, (own, x) in enumerate(simulate(4, example)):
        print("rank", rank, " after halving", own, " after doubling", x)
