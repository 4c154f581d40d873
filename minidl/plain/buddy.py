"""Buddies: each rank keeps a copy of its neighbour's state, so a rank's death costs only one step.

Writing a snapshot to the disk takes long, so it is done rarely. A copy in memory is fast enough to
be made at the beginning of every step. The buddy of rank r is rank r + 1. The buddy keeps a copy of
the state of rank r:

    rank 0    its own copy, and rank 3's          rank 2 dies. A new rank 2 is started. It gets the
    rank 1    its own copy, and rank 0's          state of rank 2 from rank 3. The other ranks load
    rank 2    its own copy, and rank 1's          their own copies of the same step.
    rank 3    its own copy, and rank 2's

All ranks must go back to the same step. But a rank may die while copies are sent. Then some ranks
have the copies of step k, and others only the copies of step k - 1. So no rank deletes old copies
before all ranks have new copies. A barrier ensures this: at a barrier all ranks wait for each
other. The order in step k is:

    send the copy of step k     barrier     delete copies older than k

A rank that has not passed the barrier still has the copies of step k - 1. If any rank has passed
the barrier, all ranks have the copies of step k. After a death, the survivors compare the newest
steps of their copies. All survivors have the copies of the smallest of these steps, so the run
continues from this step.

If the state has S bytes, a rank sends S bytes in each step. It holds up to 4 S bytes: its own state
and its neighbour's state, for each of the steps k - 1 and k. If two ranks die at the same time,
state is lost only if they are neighbours. With n ranks, the share of such pairs is 2 / (n-1).

Paper: Zheng, Shi & Kalé, "FTC-Charm++: An In-Memory Checkpoint-Based Fault Tolerant Runtime for
Charm++ and MPI", 2004. This page is the plain version. The real one, minidl/elastic/buddy.py, adds:
copies that are sent while the step computes, no copies of data that all ranks have, several deaths,
and a restart with fewer ranks.
"""

import numpy as np

from minidl.plain import ring
from minidl.plain.experts import everywhere


def save(t, copies, step, state):
    """Copies this rank's state into `copies`, and sends it to the right neighbour. Receives the
    left neighbour's state. Then deletes older copies. Call it at the beginning of each step.

    copies: {step: (own state, left neighbour's state)}."""
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    own, theirs = state.copy(), np.empty_like(state)
    t.sendrecv(own, right, theirs, left)
    copies[step] = own, theirs
    ring.all_reduce(t, np.zeros(1))  # a barrier, because the sum needs a number from each rank
    for old in list(copies):
        if old < step:
            del copies[old]


def restore(t, copies, lost, state):
    """Returns the step from which the run continues. Writes this rank's state of that step into
    `state`.

    Rank `lost` is new, and has no copies."""
    newest = max(copies) if t.rank != lost else 10**9  # 10**9 is larger than any step
    step = everywhere(t, np.array([newest])).min()  # the smallest of the ranks' newest steps
    buddy = (lost + 1) % t.size
    if t.rank == lost:
        t.recv(state, buddy)
        return step
    own, theirs = copies[step]
    state[...] = own
    if t.rank == buddy:
        t.send(theirs, lost)
    return step


if __name__ == "__main__":
    from minidl.comm import simulate

    kept = [{}, {}, {}]  # kept[r] has the copies in the memory of rank r

    def example(t):
        state = np.array([10.0 * t.rank])
        for step in range(4):
            save(t, kept[t.rank], step, state)
            state += 1  # stands for a step of training
        return state.item()

    def go_on(t):
        state = np.zeros(1)
        step = restore(t, kept[t.rank], lost=1, state=state)
        return f"step {step} state {state.item()}"

    print("before", simulate(3, example))
    kept[1] = {}  # rank 1 dies, and its copies are lost
    print("after ", simulate(3, go_on))
