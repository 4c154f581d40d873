"""If one rank fails, all ranks end. With plain MPI the other ranks wait for this rank for ever.

    an uncaught exception                       Python calls sys.excepthook. `world()` sets our
                                                hook, which then calls the earlier hook
    an uncaught exception in a thread           the same with threading.excepthook
    sys.exit(1), unless all ranks call it       `guarded` detects it, or `minidl run` does

The failed rank writes a traceback to stderr. After sys.exit it writes one line instead. Each line
begins with the rank's number. Then all ranks end. `minidl run` supervises the ranks and ends them
(supervised.py). Without `minidl run`, MPI_Abort ends the ranks, as in ChainerMN and `python -m
mpi4py`. Python has no hook for SystemExit. So if one rank calls sys.exit(1) under plain mpirun, the
other ranks wait for it. They do not wait for ever if the program runs inside `guarded`, or if the
ranks have a Watch. Only a launcher detects os._exit(1).

Test: tests/mpi/test_abort.py, tests/cli/test_supervisor.py   Used by: mpi.py, cli/rank.py
"""

import contextlib
import os
import sys
import threading
import time
import traceback

from minidl.comm.observe.places import is_ours, spot
from minidl.comm.transport import supervised
from minidl.text import tr

TOGETHER_S = 0.5  # if all ranks call sys.exit, they do it within this many seconds


class FailureHook:
    """The `sys.excepthook` and `threading.excepthook` of a rank. A process has one FailureHook.

    prefix: the beginning of each line of the traceback, such as "rank 2: ".
    end(status): a function that ends all ranks. It does not return.
    ends_mpi: if True, `abort_on_failure` keeps this hook. If False, abort_on_failure
    installs another hook, which ends MPI.
    chained: the hook that the user had set before, or None. It is called after the report.
    first: a list of functions without arguments. They are called before the report. lookout.py
    adds one function."""

    def __init__(self, prefix, end, ends_mpi):
        before = sys.excepthook
        if isinstance(before, FailureHook):
            self.first, self.chained = before.first, before.chained
        else:
            self.first = []
            self.chained = None if before is sys.__excepthook__ else before
        self.prefix, self.end, self.ends_mpi = prefix, end, ends_mpi

    def install(self):
        sys.excepthook, threading.excepthook = self, self.in_thread

    def __call__(self, kind, error, trace):
        status = status_of(error) if kind is SystemExit else 1
        try:
            for function in self.first:
                function()
            self._report(kind, error, trace)
            if self.chained is not None:
                self.chained(kind, error, trace)
        finally:
            self.end(status)

    def in_thread(self, args):
        if not issubclass(args.exc_type, SystemExit):  # SystemExit ends only the thread
            self(args.exc_type, args.exc_value, args.exc_traceback)

    def _report(self, kind, error, trace):
        error.args = tuple(map(tr, error.args))
        if kind is SystemExit:
            text = tr(f"sys.exit({error.code!r}) at {line_of(trace)}, but not on all ranks: "
                      "this ends all ranks\n")
        else:
            text = "".join(traceback.format_exception(kind, error, trace))
        sys.stdout.flush()
        sys.stderr.write("".join(self.prefix + line for line in text.splitlines(keepends=True)))
        sys.stderr.flush()
        first = next(iter(str(error).splitlines()), "")
        supervised.say("why", how=f"{kind.__name__}: {first}"[:300], line=line_of(trace))


def abort_on_failure(mpi):
    """Installs a FailureHook. From now on, if this process fails in any thread, all ranks end. But
    after MPI is finalised, a failure does not end the other ranks.

    mpi: the module mpi4py.MPI."""
    comm = mpi.COMM_WORLD
    if comm.size == 1 or getattr(sys.excepthook, "ends_mpi", False):
        return

    def end(status):
        if not mpi.Is_finalized():
            end_all(comm, status)

    # Ask for the rank now: MPI cannot answer after it is finalised.
    FailureHook(f"rank {comm.rank}: ", end, ends_mpi=True).install()


def name_the_rank(rank):
    """Installs the FailureHook in a rank that `minidl run` supervises. cli/rank.py calls this
    function before it runs the script.

    rank: the rank of this process, or None if no environment variable tells it. If it is None,
    `abort_on_failure` installs a hook that knows the rank."""
    prefix = "" if rank is None else f"rank {rank}: "
    FailureHook(prefix, leave, ends_mpi=rank is not None).install()


def before_the_report(function):
    """Adds `function` to this process's FailureHook, if there is one. If the process fails, the
    function is called before the traceback is written."""
    if isinstance(sys.excepthook, FailureHook):
        sys.excepthook.first.append(function)


@contextlib.contextmanager
def guarded():
    """Write `with guarded():` around a rank's whole program. Every failure inside this block ends
    all ranks. sys.exit(1) counts as a failure, unless all ranks call it."""
    try:
        yield
    except BaseException as error:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            abort_on_failure(mpi)  # for a program that uses mpi4py and did not call world()
            leaves = isinstance(error, SystemExit) and mpi.COMM_WORLD.size > 1
            if leaves and status_of(error) and not _all_leave(mpi.COMM_WORLD):
                sys.excepthook(SystemExit, error, error.__traceback__)
        raise


def status_of(error):
    """error: a SystemExit. Returns the exit status of the process, an int."""
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def line_of(trace):
    """trace: a traceback. Returns its innermost line of the user's code, as 'file:line'."""
    lines = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(trace)]
    users = [line for line in lines if not is_ours(line[0])]
    return spot(*users[-1]) if users else "a line of minidl"


def _all_leave(comm):
    """Waits until all ranks have called this function, but for at most TOGETHER_S seconds. Returns
    True if all ranks have called it. Then each rank can end by itself."""
    sys.stdout.flush()  # flush now: when one rank has ended, the launcher may end this rank
    barrier, until = comm.Ibarrier(), time.monotonic() + TOGETHER_S
    while not (here := barrier.Test()) and time.monotonic() < until:
        time.sleep(1e-3)
    return here


def end_all(comm, status=1):
    """Ends all ranks. May be called from any thread. Does not return."""
    if supervised.is_supervised():
        leave(status)
    # If MPI is stuck in another thread, comm.Abort does not return. Then this process ends itself
    # after 1 s, and the launcher ends the other ranks.
    last_resort = threading.Timer(1.0, os._exit, [status])
    last_resort.daemon = True
    last_resort.start()
    time.sleep(0.1)  # the launcher needs time to print our text: it drops text when it ends ranks
    comm.Abort(status)


def leave(status):
    """Tells the launcher that this rank has failed, and ends this process. Does not return. The
    launcher ends the other ranks. The reason must have been reported before."""
    sys.stdout.flush()
    sys.stderr.flush()
    forget_shared_memory()  # after an error in world(), MPICH's shared memory still has a name
    supervised.say("failed", status=status)
    os._exit(status)


def forget_shared_memory():
    """Removes the name of MPICH's shared memory from /dev/shm.

    `world()` calls this function when all ranks have mapped the memory. If a rank ends itself, it
    calls this function, too. MPICH removes the name only at the end of a run. So without this
    function, 2 MB or more stay in /dev/shm after a run that was killed. In a container /dev/shm
    often has only 64 MB."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with contextlib.suppress(OSError):  # another rank may have removed the name
                os.unlink(path)
