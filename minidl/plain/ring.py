"""The ring all-reduce: each rank has an array, and at the end each has the sum of all arrays.

The ranks form a circle. Each rank cuts its array into n chunks, one for each rank. In every step
each rank sends one chunk to its right neighbour, and receives one from its left neighbour.

    reduce-scatter    n-1 steps. A chunk travels around the circle, and every rank adds its own
                      part to it. At the end each rank holds the whole sum of the chunk that it
                      received last. On rank r this is chunk r+1, on the last rank chunk 0
    all-gather        n-1 steps. The whole sums travel around the circle; every rank copies them

    3 ranks, the chunks A B C of each:

    rank 0   a0 b0 c0      a0     b0     c2+c0      .    S_b  .        S_a  S_b  S_c
    rank 1   a1 b1 c1      a0+a1  b1     c1         .    .    S_c      S_a  S_b  S_c
    rank 2   a2 b2 c2      a2     b1+b2  c2         S_a  .    .        S_a  S_b  S_c
             the start     after step 0             reduce-scatter     all-gather
                                                    is done            is done

S_a = a0 + a1 + a2 is the whole sum of chunk A. In the same way S_b is the sum of chunk B, and S_c
the sum of chunk C. A point marks a part of a sum that no rank reads any more.

For an array of K bytes each rank sends 2 (n-1)/n K bytes. This is less than 2K for any number of
ranks. In every step every connection between neighbours is in use. The price is 2 (n-1) messages,
one after the other.

Paper: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
2009. This page is the plain version. The real one, minidl/comm/ring.py, adds: other operations than
the sum, arrays of any shape, no new memory in a step, a check that all ranks make the same call,
and a formula for the bytes that are sent.
"""

import numpy as np


def reduce_scatter(t, x):
    """Sums each chunk of x over all ranks. Rank r gets the sum of chunk r+1, in place."""
    n, r = t.size, t.rank
    left, right = (r - 1) % n, (r + 1) % n
    chunks = np.array_split(x, n)  # views, so writing into a chunk writes into x
    for step in range(n - 1):
        outgoing = chunks[(r - step) % n]
        own = chunks[(r - 1 - step) % n]  # the left neighbour, r - 1, sends this chunk now
        incoming = np.empty_like(own)
        t.sendrecv(outgoing, right, incoming, left)
        own += incoming


def all_gather(t, x):
    """Copies chunk r+1 of rank r's x into the x of all other ranks, for each rank r."""
    n, r = t.size, t.rank
    left, right = (r - 1) % n, (r + 1) % n
    chunks = np.array_split(x, n)
    for step in range(n - 1):
        outgoing = chunks[(r + 1 - step) % n]
        incoming = chunks[(r - step) % n]
        t.sendrecv(outgoing, right, incoming, left)


def all_reduce(t, x):
    """Sums x, a vector, over all ranks, in place. Returns x."""
    reduce_scatter(t, x)
    all_gather(t, x)
    return x


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        x = np.array([1.0, 10.0, 100.0, 1000.0]) * (t.rank + 1)
        return all_reduce(t, x)

    for rank, x in enumerate(simulate(3, example)):
        print("rank", rank, x)
