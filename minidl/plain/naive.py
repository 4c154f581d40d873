"""The obvious all-reduce: one rank gets all arrays, adds them, and sends the sum to all.

    1, 2, 3 ──► 0      gather: every rank sends its array to rank 0, which adds them in rank order,
                       ((x0 + x1) + x2) + x3
    0 ──► 1, 2, 3      broadcast: rank 0 sends the sum to every rank

For arrays of K bytes on n ranks, rank 0 receives (n-1) K bytes, and sends (n-1) K bytes. The other
ranks wait for rank 0. With twice the number of ranks, an all-reduce takes twice the time. The pages
ring, tree, halving_doubling and double_tree do better.

Source: Message Passing Interface Forum, "MPI: A Message-Passing Interface Standard", 1994, gather
and broadcast. This page is the plain version. The real one, minidl/comm/shared_memory.py, adds:
memory that all ranks of one machine can read and write. Each rank adds up a part of the arrays. The
additions have the same order, so the result has the same bits.
"""

import numpy as np


def gather(t, x):
    """On rank 0, returns a list with the x of all ranks, in rank order. On other ranks, returns
    None."""
    if t.rank > 0:
        t.send(x, 0)
        return None
    return [x] + [t.recv(np.empty_like(x), source) for source in range(1, t.size)]


def broadcast(t, x):
    """Copies rank 0's x into the x of every rank. Returns x."""
    if t.rank > 0:
        return t.recv(x, 0)
    for to in range(1, t.size):
        t.send(x, to)
    return x


def all_reduce(t, x, op=np.add):
    """Sums x over all ranks, in place. Returns x. With op=np.maximum, each element of x becomes
    the maximum over all ranks."""
    arrays = gather(t, x)
    if t.rank == 0:
        for other in arrays[1:]:
            op(x, other, out=x)
    return broadcast(t, x)


if __name__ == "__main__":
    from minidl.comm import simulate

    def example(t):
        x = np.array([1.0, 10.0, 100.0]) * (t.rank + 1)
        return all_reduce(t, x)

    for rank, x in enumerate(simulate(3, example)):
        print("rank", rank, x)
