"""MPI's communicators, used again: MPICH has numbers for some 2,000 in a process, and then ends.

    group = t.subgroup(ranks)      has communicators of its own
    del group                      leaves them to the next group of the same ranks

A communicator cannot be freed when one rank's group is garbage: MPI would give its number to the
next communicator, and a message that nobody had received would reach that one. So it is kept, with
its ranks, and when they make a group again:

    1  agree     each member says whose group it does not hold any more (a weak reference); what all
                 say so of is free. 2(n-1) messages of a few bytes
    2  drain     on what is free each member sends the others an empty last message, and receives
                 what comes from each until that. Messages between two ranks do not overtake each
                 other, so afterwards none is on its way

A group that is not held any more has nobody who could ask for the messages that step 2 drops.

Test: tests/mpi/test_communicators.py   Used by: mpi.py
"""

import gc
import weakref

import numpy as np

from minidl.comm.transport.window import HEADER

# Of the messages by which MPI makes a group: Open MPI takes a pending user's message of tag 0 for
# one of them, and hangs. watch.py has 32767.
GROUP_TAG = 32766
AGREE_TAG = 32765
LAST_TAG = 32764  # of a last message among point-to-point ones
LAST_CODE = 0  # among those of collectives: no call's code is 0 (call_code.py)


class Communicators:
    """What a group has of MPI. One group at a time.

    comm          for messages between two ranks
    collectives   for those of collectives: None until there are any
    windows       {n_bytes: (every rank's memory, fence)}
    spoiled       whether a receive was begun that nobody waited for: it would take a message from
                  a later group, so there is none
    made          {ranks: [Communicators of the subgroups of these ranks]}, in the same order on all
                  of them
    making        so many threads of this rank are in MPI's Create_group on comm
    watched       the name that a Watch has for the group, for its counters"""

    def __init__(self, comm):
        self.comm, self.collectives = comm, None
        self.windows, self.spoiled, self.made = {}, False, {}
        self.holder = self.watched = None
        self.making = 0

    def held_by(self, transport):
        self.holder = weakref.ref(transport)

    def is_free(self):
        return self.holder() is None and not self.spoiled


def for_group(mpi, parent, ranks):
    """Communicators for the parent's subgroup of these ranks, which all call."""
    made = parent.made.setdefault(ranks, [])
    for collect in (lambda: None, gc.collect):  # groups in reference cycles are held until then
        collect()
        # All members have equally many: they have made the same groups.
        free = np.array([each.is_free() for each in made], np.uint8)
        if made and _agreed(mpi, parent.comm, ranks, free).any():
            again = made[int(free.argmax())]
            _drain(mpi, again.comm, LAST_TAG)
            if again.collectives is not None:
                _drain(mpi, again.collectives, LAST_CODE)
            _clear_windows(mpi, parent.comm, ranks, again)
            return again
        try:
            new = Communicators(create(mpi, parent, ranks))
        except mpi.Exception as error:  # on all members: MPI's ranks agree on a number
            refused = error
        else:
            made.append(new)
            return new
    raise RuntimeError(
        f"rank {parent.comm.rank}: MPI makes no further communicator; this group has made "
        f"{sum(map(len, parent.made.values()))} subgroups. Keep fewer at a time: what no rank "
        "holds any more, the next subgroup of the same ranks takes over") from refused


def create(mpi, parent, ranks):
    """A communicator of some of the parent's ranks. Only they call: the others need not know.

    First all say that they are here, so that it is made in an instant: messages and Dup end with an
    error when a rank dies meanwhile, but Open MPI's Create_group never ends then."""
    _agreed(mpi, parent.comm, ranks, np.zeros(1, np.uint8))
    if tuple(ranks) == tuple(range(parent.comm.size)):
        return parent.comm.Dup()
    parent.making += 1
    try:
        return parent.comm.Create_group(parent.comm.group.Incl(ranks), GROUP_TAG)
    finally:
        parent.making -= 1


def _agreed(mpi, comm, ranks, flags):
    """flags & those of all other members, in place: gathered on the first of them, sent back."""
    first, *others = ranks
    if comm.rank != first:
        comm.Send((flags, mpi.BYTE), first, AGREE_TAG)
        comm.Recv((flags, mpi.BYTE), first, AGREE_TAG)
        return flags
    theirs = np.empty_like(flags)
    for rank in others:
        comm.Recv((theirs, mpi.BYTE), rank, AGREE_TAG)
        flags &= theirs
    for rank in others:
        comm.Send((flags, mpi.BYTE), rank, AGREE_TAG)
    return flags


def _drain(mpi, comm, last):
    """Receive, and drop, what was sent on this communicator until now."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    status, nothing = mpi.Status(), bytearray()
    sent = [comm.Isend((nothing, mpi.BYTE), rank, last) for rank in others]
    for rank in others:
        tag = None
        while tag != last:
            message = comm.Mprobe(rank, mpi.ANY_TAG, status)
            tag = status.tag  # before the receive, which may forget it
            message.Recv((np.empty(status.Get_count(mpi.BYTE), np.uint8), mpi.BYTE))
    mpi.Request.Waitall(sent)


def _clear_windows(mpi, comm, ranks, again):
    """No signal is left in shared memory: after the drain nobody uses it, until all are here."""
    for memory, fence in again.windows.values():
        memory[again.comm.rank][:HEADER] = 0
        fence()
    if again.windows:
        _agreed(mpi, comm, ranks, np.zeros(1, np.uint8))
