"""Pipelined chain: a broadcast whose time hardly depends on the number of ranks.

    root -> 1    |0|1|2|3|              x is cut into S segments. Every rank hands one on while the
       1 -> 2      |0|1|2|3|            next comes in: S + n-2 times a segment in all, instead of
       2 -> 3        |0|1|2|3|          n-1 times all of x.

Long messages, then, cost K beta and not the binomial tree's log2(n) K beta: no rank sends anything
twice. Short ones cost n-1 latencies, where the tree has log2 n.

How many segments? Each costs a message, o seconds of the port whatever its size: S + n-2 times
o + K/S beta is least at S = sqrt((n-2) K beta / o), `cost.best_segments`.

Source: Pješivac-Grbović et al. 2007, "Performance analysis of MPI collective operations", Cluster
Computing 10.
Test: tests/comm/test_chain.py   Time: cost.py
"""

from minidl.comm import chunks
from minidl.comm.checks import check_peer
from minidl.comm.collective import collective


@collective
def broadcast(t, x, root=0, segment_bytes=chunks.SEGMENT_BYTES):
    """Copy root's x into every rank's x; returns x.

    Every rank but the last, root-1, sends x.nbytes to its right, in pieces of segment_bytes or a
    little less.
    """
    check_peer(t, root, "root")
    n = t.size
    me, left, right = (t.rank - root) % n, (t.rank - 1) % n, (t.rank + 1) % n
    flat = chunks.flat(x)
    segments = chunks.split(flat, chunks.segment_count(flat.nbytes, segment_bytes))
    # All at once, so that every segment finds its place waiting.
    coming = [t.irecv(segment, left) for segment in segments] if me > 0 else []
    going = []
    for k, segment in enumerate(segments):
        if me > 0:
            coming[k].wait()
        if me < n - 1:
            going.append(t.isend(segment, right))
    for request in going:
        request.wait()
    if not x.flags.c_contiguous:
        x[...] = flat.reshape(x.shape)
    return x
