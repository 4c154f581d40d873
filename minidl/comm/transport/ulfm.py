"""Ranks that go on without one that has died: MPI's fault tolerance (ULFM), as Open MPI 5 has it.

    rank 0   all-reduce .. error 75 -- revoke -- shrink -- rank 0 of 3      75: a process has failed
    rank 1   all-reduce ..            (77: revoked) shrink -- rank 1 of 3
    rank 2   killed
    rank 3   a step .... all-reduce 77 --------- shrink -- rank 2 of 3

MPI tells only those ranks of a death that have to do with the dead one; the others would wait for
the ones that gave up. So whoever gets an error revokes the communicator, which ends every call on
it on all ranks. A thread of each rank looks whether it has been, or whether a rank has died, and
revokes all its others (of groups, of background threads). Then the survivors make a new
communicator, in their old order. Only making a group of some ranks gets no error at all when one of
them dies in that instant: who is left in it ends itself (_look).

Only a death by a signal is seen: of os._exit(3) Open MPI tells nobody, so `minidl run --heal` ends
such a rank's guard by a signal (cli/rank.py). Through shared memory nobody is told: no windows.

Source: Bland et al. 2013, "Post-failure recovery of MPI communication capability" (ULFM)
Test: test_ulfm.py, tests/elastic/test_heal_mpi.py   Used by: mpi.py, elastic/heal.py
"""

import os
import signal
import sys
import threading
import time

from minidl.comm.transport.communicators import Communicators
from minidl.comm.transport.mpi import MPITransport
from minidl.comm.transport.window import NoSharedMemory

# "3 2,5": the two processes of one spawn become ranks 2 and 5; so far the run has spawned 3
NEWCOMER = "MINIDL_NEWCOMER"
LOOK_S = 0.05  # between two looks whether somebody has revoked: 20 calls a second cost nothing
STUCK_S = 5.0  # after a death: no group takes that long to make
TOLD_S = 1.0  # MPI's news of a death may come after the error that the death caused


class Healing(MPITransport):
    """A transport whose calls end with an error, on all ranks, when one has died."""

    newcomer = False  # whether this process stands in for one that has died
    n_replaced = 0  # so many have been replaced, in this run
    lost = ()  # the numbers in the group before this one that have died
    _over = None  # an Event that ends the thread that looks

    def shared(self, n_bytes):
        raise NoSharedMemory(f"rank {self.rank}: a rank that waits on shared memory does not learn "
                             "that another has died. In a run that heals use a collective of "
                             "messages: ring, tree, halving_doubling")

    def leave(self):
        """Look no more."""
        self._over.set()


def world(mpi, part_bytes):
    """comm.world() of a run that heals; in a process that was spawned later, that of all ranks."""
    parent, newcomer = mpi.Comm.Get_parent(), os.environ.pop(NEWCOMER, "")
    if not newcomer:
        return _transport(mpi.COMM_WORLD, part_bytes)
    n_replaced, numbers = newcomer.split()
    number = int(numbers.split(",")[mpi.COMM_WORLD.rank])
    t = _transport(_in_order(parent.Merge(True), number), part_bytes)
    t.newcomer, t.n_replaced = True, int(n_replaced)
    return t


def _transport(comm, part_bytes):
    t = Healing(Communicators(comm), part_bytes)
    comm.Set_errhandler(t._mpi.ERRORS_RETURN)  # which mpi4py turns into exceptions
    t._over = threading.Event()
    threading.Thread(target=_look, args=(t._held, t._over), daemon=True).start()
    return t


def _in_order(comm, number):
    """The same processes, in the order of these numbers."""
    return comm.Split(0, number)


def _look(held, over):
    told_s = 0.0
    while not over.wait(LOOK_S):
        if held.comm.Is_revoked() or held.comm.Get_failed().Get_size():
            _revoke(held)
            told_s += LOOK_S
            if told_s > STUCK_S and _making(held):
                sys.stderr.write(
                    f"rank {held.comm.rank}: another rank died in the instant in which MPI made a "
                    "group of both, and Open MPI waits for it for ever: this rank ends itself, "
                    "too. Where all do, minidl run --heal --restarts 1 goes on from the last "
                    "snapshot\n")
                os.kill(os.getpid(), signal.SIGKILL)


def _making(held):
    """Whether this rank is in a call that makes one of the group's subgroups, or theirs."""
    return held.making or any(_making(each) for made in list(held.made.values()) for each in made)


def _revoke(held):
    """This group's communicators and those of all its subgroups."""
    for comm in (held.comm, held.collectives):
        if comm is not None and not comm.Is_revoked():
            comm.Revoke()
    for made in list(held.made.values()):
        for each in list(made):
            _revoke(each)


def has_lost(t):
    """Whether a rank of t has died, or another rank has seen one die."""
    comm, until = t._comm, time.monotonic() + TOLD_S
    while not comm.Is_revoked() and not comm.Get_failed().Get_size():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def revoke(t):
    """End all calls that any rank waits in, on t and its groups."""
    _revoke(t._held)


def survivors(t, n_replacements=0):
    """The transport of those that live, in their old order; all of them call it.

    n_replacements: of the dead, so many in the whole run are replaced by processes started anew
    (the same command), which get their numbers."""
    mpi, dead_of = t._mpi, t._comm.group
    revoke(t)
    comm = t._comm.Shrink()
    t.leave()
    comm.Set_errhandler(mpi.ERRORS_RETURN)
    dead = dead_of.Difference(dead_of, comm.group)
    lost = [int(rank) for rank in dead.Translate_ranks(None, dead_of)]
    numbers = lost[:max(0, n_replacements - t.n_replaced)]
    n_replaced = t.n_replaced + len(numbers)
    if numbers:
        mine = comm.group.Translate_ranks([comm.rank], dead_of)[0]
        newcomers = f"{n_replaced} {','.join(map(str, numbers))}"
        comm = _in_order(_spawn(comm, len(numbers), newcomers), int(mine))
    new = _transport(comm, t._part_bytes)
    new.n_replaced, new.lost = n_replaced, lost
    return new


def _spawn(comm, n, newcomers):
    """With n new processes, which run this one's command: the communicator of all."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("MINIDL_")
            and name != "MINIDL_LINK"} | {NEWCOMER: newcomers}
    arguments = [*(f"{name}={value}" for name, value in ours.items()), sys.executable,
                 *sys.orig_argv[1:]]
    between = comm.Spawn("/usr/bin/env", arguments, n)
    return between.Merge(False)


def all_say(t, yes):
    """Whether all ranks say yes and none has died: the same answer on all that live."""
    try:
        return bool(t._comm.Agree(int(yes)))
    except t._mpi.Exception:  # on all of them
        t._comm.Ack_failed()
        return False
