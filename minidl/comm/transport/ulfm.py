"""Ranks continue when one rank has died: MPI's fault tolerance (ULFM), in Open MPI 5.

    rank 0   all-reduce .. error 75 -- revoke -- shrink -- rank 0 of 3      75: a process has failed
    rank 1   all-reduce ..            (77: revoked) shrink -- rank 1 of 3
    rank 2   killed
    rank 3   a step .... all-reduce 77 --------- shrink -- rank 2 of 3

MPI reports a death only to the ranks that exchange messages with the dead rank. These ranks stop
with an error. Other ranks know nothing of the death, and wait for these ranks. So if a rank gets an
error, it revokes the communicator. This ends every call on this communicator, on all ranks. A
thread of each rank checks whether a communicator is revoked or a rank has died. Then the thread
revokes all other communicators of its rank, such as the communicators of groups and background
threads. The living ranks make a new communicator, in their old order.

One call gets no error: Open MPI's Create_group, which makes a group of some ranks. It waits for
ever if one of these ranks dies during the call. If a rank is stuck in this call, it ends itself
(_look).

Open MPI detects only a death by a signal. It does not detect os._exit(3). The parent process of a
rank is its guard (cli/rank.py). With `minidl run --heal`, the guard of a failed rank ends itself by
a signal. If a rank waits on shared memory, it gets no error. So there are no shared windows in a
run in which ranks may continue after a death.

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

# The value "3 2,5" means: the run has spawned 3 processes so far, and the two new processes become
# ranks 2 and 5.
NEWCOMER = "MINIDL_NEWCOMER"
LOOK_S = 0.05  # seconds between two checks for a revoked communicator; 20 checks a second are cheap
STUCK_S = 5.0  # if a rank is still making a group this many seconds after a death, it is stuck
TOLD_S = 1.0  # after an error, wait this long for MPI to report the death that caused it


class Healing(MPITransport):
    """A transport of MPI processes. If one rank dies, the calls of all ranks end with an error."""

    newcomer = False  # True if this process replaces a process that has died
    n_replaced = 0  # the number of processes that were replaced in this run
    lost = ()  # the ranks that have died, numbered as in the previous group
    _over = None  # an Event that ends the thread _look

    def shared(self, n_bytes):
        raise NoSharedMemory(f"rank {self.rank}: a rank that waits on shared memory does not learn "
                             "that another rank has died. With --heal, use a collective that sends "
                             "messages: ring, tree, halving_doubling")

    def leave(self):
        """Ends the thread that checks for deaths."""
        self._over.set()


def world(mpi, part_bytes):
    """Returns a Healing transport with all ranks. comm.world() calls this function if MINIDL_HEAL
    is 1, so that ranks continue when a rank has died. If this process replaces a dead rank, it
    joins the living ranks here."""
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
    comm.Set_errhandler(t._mpi.ERRORS_RETURN)  # mpi4py turns the errors into exceptions
    t._over = threading.Event()
    threading.Thread(target=_look, args=(t._held, t._over), daemon=True).start()
    return t


def _in_order(comm, number):
    """Returns a communicator of the same processes, but in the order of their numbers. number: the
    number of this process. All processes of comm must call this function."""
    return comm.Split(0, number)


def _look(held, over):
    told_s = 0.0
    while not over.wait(LOOK_S):
        if held.comm.Is_revoked() or held.comm.Get_failed().Get_size():
            _revoke(held)
            told_s += LOOK_S
            if told_s > STUCK_S and _making(held):
                sys.stderr.write(
                    f"rank {held.comm.rank}: another rank died while MPI made a group of that rank "
                    "and this one. Open MPI waits for the dead rank for ever, so this rank ends "
                    "itself, too. If all ranks end, minidl run --heal --restarts 1 continues from "
                    "the last snapshot\n")
                os.kill(os.getpid(), signal.SIGKILL)


def _making(held):
    """held: the Communicators of a group. Returns True if a thread of this rank is inside a call
    that makes a subgroup of this group, or a subgroup of one of its subgroups."""
    return held.making or any(_making(each) for made in list(held.made.values()) for each in made)


def _revoke(held):
    """held: the Communicators of a group. Revokes the communicators of this group and of all its
    subgroups."""
    for comm in (held.comm, held.collectives):
        if comm is not None and not comm.Is_revoked():
            comm.Revoke()
    for made in list(held.made.values()):
        for each in list(made):
            _revoke(each)


def has_lost(t):
    """Returns True if a rank of t has died, or if another rank has noticed a death and has revoked
    the communicator. MPI may report a death late. So this function waits for up to TOLD_S seconds
    before it returns False."""
    comm, until = t._comm, time.monotonic() + TOLD_S
    while not comm.Is_revoked() and not comm.Get_failed().Get_size():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def revoke(t):
    """Revokes the communicators of t and of its subgroups. On all ranks, calls that wait in these
    groups end with an error."""
    _revoke(t._held)


def survivors(t, n_replacements=0):
    """Returns a transport of the living ranks, in their old order. It also contains the processes
    that replace dead ranks. All living ranks must call this function.

    n_replacements: the largest number of dead ranks that the whole run replaces. A replacement is a
    new process of the same command. It gets the number of the dead rank."""
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
    """Starts n new processes with the command of this process. Returns a communicator of all old
    and new processes."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("MINIDL_")
            and name != "MINIDL_LINK"} | {NEWCOMER: newcomers}
    arguments = [*(f"{name}={value}" for name, value in ours.items()), sys.executable,
                 *sys.orig_argv[1:]]
    between = comm.Spawn("/usr/bin/env", arguments, n)
    return between.Merge(False)


def all_say(t, yes):
    """Returns True if `yes` is True on all ranks and no rank has died. All living ranks get the
    same answer."""
    try:
        return bool(t._comm.Agree(int(yes)))
    except t._mpi.Exception:  # raised on all ranks
        t._comm.Ack_failed()
        return False
