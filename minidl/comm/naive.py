"""All-reduce the obvious way: the others are tested against it. Test: tests/comm/test_naive.py

    1, 2, 3 -> 0      every rank sends its array to rank 0, which adds them in rank order
    0 -> 1, 2, 3      and sends the sum to all.

Rank 0 sends and receives (n-1) * x.nbytes: its link is a bottleneck.
"""

import numpy as np

from minidl.backend import xp_of
from minidl.comm.collective import collective


@collective
def gather(t, x):
    """All ranks' x stacked in rank order along a new first axis, on rank 0; None elsewhere."""
    if t.rank != 0:
        t.send(x, 0)
        return None
    gathered = xp_of([x]).empty((t.size, *x.shape), x.dtype)
    gathered[0] = x
    requests = [t.irecv(gathered[src, ...], src) for src in range(1, t.size)]  # 0-d: a view, too
    for request in requests:
        request.wait()
    return gathered


@collective
def broadcast(t, x):
    """Copy rank 0's x into every rank's x; returns x."""
    if t.rank != 0:
        return t.recv(x, 0)
    for request in [t.isend(x, dst) for dst in range(1, t.size)]:
        request.wait()
    return x


@collective
def all_reduce(t, x, op=np.add):
    """The op of all ranks' x, ((x0 + x1) + x2) + ... in x's dtype, in place; returns x."""
    gathered = gather(t, x)
    if t.rank == 0:
        for other in gathered[1:]:
            op(x, other, out=x)
    return broadcast(t, x)
