"""Reuses MPI's communicators, because MPICH allows only about 2,000 of them in a process.

    group = t.subgroup(ranks)      has its own communicators
    del group                      the next group of the same ranks can use them

A communicator must not be freed when one rank deletes its group. Otherwise MPI gives the number of
this communicator to the next communicator. Then an old message that was not received arrives in the
next communicator. So we keep the communicator, and note its ranks. When the same ranks make a group
again, there are two steps:

    1  agree     each member tells which of the kept communicators it does not use any more (the
                 weak reference to the old group is then empty). If no member uses a communicator,
                 it is free. For n members this step takes 2(n-1) messages of a few bytes
    2  drain     each member sends an empty last message to every other member, on the free
                 communicator. It receives all messages from each member up to the last one, and
                 drops them. Messages between two ranks do not overtake each other, so afterwards
                 no message is left

No program can miss the dropped messages, because no rank has a reference to the old group.

Test: tests/mpi/test_communicators.py   Used by: mpi.py
"""

import gc
import weakref

import numpy as np

from minidl.comm.transport.window import HEADER

# The tag of the messages with which MPI makes a group. With tag 0, Open MPI could receive a user's
# message instead of its own, and hang. watch.py uses the tag 32767.
GROUP_TAG = 32766
AGREE_TAG = 32765
LAST_TAG = 32764  # the tag of the last message on the communicator `comm`
LAST_CODE = 0  # the last message's tag on `collectives`: no call has code 0 (call_code.py)


class Communicators:
    """The MPI communicators and windows of a group. Only one group at a time uses them.

    comm          the communicator for messages between two ranks
    collectives   the communicator for collectives; None until the first collective
    windows       {n_bytes: (every rank's memory, fence)}; window.Flags explains fence
    holder        a weak reference to the group's transport
    spoiled       True if wait() was never called for a receive. This receive can take a message of
                  a later group, so no later group gets these communicators
    made          {ranks: [Communicators of the subgroups of these ranks]}. The list has the same
                  order on all of these ranks
    making        the number of this rank's threads that are inside MPI's Create_group on comm
    watched       the name that a Watch gives to the group; the keys of the group's counters contain
                  this name"""

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
    """Returns Communicators for the parent's subgroup of these ranks: free Communicators if there
    are any, otherwise new Communicators. All these ranks must call this function. Raises
    RuntimeError if MPI cannot make another communicator."""
    made = parent.made.setdefault(ranks, [])
    for collect in (lambda: None, gc.collect):  # gc.collect deletes groups in reference cycles
        collect()
        # `made` has the same length on all members: they have made the same groups.
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
        except mpi.Exception as error:  # all members get this error
            refused = error
        else:
            made.append(new)
            return new
    raise RuntimeError(
        f"rank {parent.comm.rank}: MPI cannot make another communicator; this group has made "
        f"{sum(map(len, parent.made.values()))} subgroups. Delete subgroups on all their ranks. "
        "Then new subgroups of the same ranks use the old communicators again") from refused


def create(mpi, parent, ranks):
    """Returns a new communicator of some of the parent's ranks. Only these ranks call this
    function.

    First these ranks exchange messages. After that, all of them have begun this call, so MPI makes
    the communicator quickly. If a rank dies during the messages, or during MPI's Dup, the call
    raises an error. But if a rank dies during Open MPI's Create_group, the call waits for ever."""
    _agreed(mpi, parent.comm, ranks, np.zeros(1, np.uint8))
    if tuple(ranks) == tuple(range(parent.comm.size)):
        return parent.comm.Dup()
    parent.making += 1
    try:
        return parent.comm.Create_group(parent.comm.group.Incl(ranks), GROUP_TAG)
    finally:
        parent.making -= 1


def _agreed(mpi, comm, ranks, flags):
    """Computes the bitwise AND of the flags of all members, and writes it into `flags`. Returns
    flags. The first member receives the flags of all members, and sends the result back."""
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
    """Receives and drops all messages that were sent on this communicator until now. last: the tag
    of the empty last message."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    status, nothing = mpi.Status(), bytearray()
    sent = [comm.Isend((nothing, mpi.BYTE), rank, last) for rank in others]
    for rank in others:
        tag = None
        while tag != last:
            message = comm.Mprobe(rank, mpi.ANY_TAG, status)
            tag = status.tag  # read the tag now: the receive may overwrite it
            message.Recv((np.empty(status.Get_count(mpi.BYTE), np.uint8), mpi.BYTE))
    mpi.Request.Waitall(sent)


def _clear_windows(mpi, comm, ranks, again):
    """Sets this rank's signals in shared memory to 0. After the drain no rank uses these signals.
    All members wait here for each other. So no member sends a signal before the signals of all
    members are 0."""
    for memory, fence in again.windows.values():
        memory[again.comm.rank][:HEADER] = 0
        fence()
    if again.windows:
        _agreed(mpi, comm, ranks, np.zeros(1, np.uint8))
