"""One rank that fails ends all ranks: MPI alone would leave the others waiting for it for ever.

    an exception that nobody catches            Python calls sys.excepthook: `world()` sets ours,
                                                which then calls the one that was there
    the same in a thread                        threading.excepthook, likewise
    sys.exit(1), unless all ranks leave so      `guarded`; under `minidl run` its launcher

Then a traceback or a line on stderr that names the rank, and the end of all ranks: by the launcher
where `minidl run` supervises them (supervised.py), else by MPI_Abort, as by ChainerMN and `python
-m mpi4py`. Python has no hook for SystemExit, so under plain mpirun sys.exit(1) on one rank leaves
the others waiting, unless they have a Watch. Of os._exit(1) only a launcher learns.

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

TOGETHER_S = 0.5  # between the first and the last of ranks that all leave by the same sys.exit


class FailureHook:
    """The `sys.excepthook` and `threading.excepthook` of a rank. There is one in a process.

    prefix: what each line of a traceback begins with, "rank 2: ".
    end(status): ends all ranks. Does not return.
    ends_mpi: whether `end` knows MPI. Without a launcher it must.
    chained: the hook that the user had set before, if any. It is called after the report.
    first: functions without arguments that are called before the report (lookout.py has one)."""

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
        if not issubclass(args.exc_type, SystemExit):  # which ends the thread alone
            self(args.exc_type, args.exc_value, args.exc_traceback)

    def _report(self, kind, error, trace):
        error.args = tuple(map(tr, error.args))
        if kind is SystemExit:
            text = tr(f"sys.exit({error.code!r}) at {line_of(trace)}, but not on all ranks: it "
                      "ends them all\n")
        else:
            text = "".join(traceback.format_exception(kind, error, trace))
        sys.stdout.flush()
        sys.stderr.write("".join(self.prefix + line for line in text.splitlines(keepends=True)))
        sys.stderr.flush()
        first = next(iter(str(error).splitlines()), "")
        supervised.say("why", how=f"{kind.__name__}: {first}"[:300], line=line_of(trace))


def abort_on_failure(mpi):
    """From now on, and until MPI is finalised, a failure of this process, in any thread, ends all.

    mpi: the module mpi4py.MPI."""
    comm = mpi.COMM_WORLD
    if comm.size == 1 or getattr(sys.excepthook, "ends_mpi", False):
        return

    def end(status):
        if not mpi.Is_finalized():
            end_all(comm, status)

    # the rank is asked now: MPI does not answer once it is finalised
    FailureHook(f"rank {comm.rank}: ", end, ends_mpi=True).install()


def name_the_rank(rank):
    """The same under a launcher that supervises, from the first line of the script on.

    rank: None if this launcher has no variable that tells; `abort_on_failure` will know it."""
    prefix = "" if rank is None else f"rank {rank}: "
    FailureHook(prefix, leave, ends_mpi=rank is not None).install()


def before_the_report(function):
    """Call `function()` when this process fails, before the traceback is written."""
    if isinstance(sys.excepthook, FailureHook):
        sys.excepthook.first.append(function)


@contextlib.contextmanager
def guarded():
    """Around a rank's whole program: every failure in it ends all ranks, sys.exit(1) included."""
    try:
        yield
    except BaseException as error:
        mpi = sys.modules.get("mpi4py.MPI")
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
            abort_on_failure(mpi)  # in a program that uses mpi4py and never called world()
            leaves = isinstance(error, SystemExit) and mpi.COMM_WORLD.size > 1
            if leaves and status_of(error) and not _all_leave(mpi.COMM_WORLD):
                sys.excepthook(SystemExit, error, error.__traceback__)
        raise


def status_of(error):
    """The exit status that a SystemExit asks for."""
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def line_of(trace):
    """file:line of the user's code, the innermost in a traceback."""
    lines = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(trace)]
    users = [line for line in lines if not is_ours(line[0])]
    return spot(*users[-1]) if users else "a line of minidl"


def _all_leave(comm):
    """Whether all ranks come here within TOGETHER_S: then each ends by itself."""
    sys.stdout.flush()  # a launcher ends the others when the first has left with such a status
    barrier, until = comm.Ibarrier(), time.monotonic() + TOGETHER_S
    while not (here := barrier.Test()) and time.monotonic() < until:
        time.sleep(1e-3)
    return here


def end_all(comm, status=1):
    """End all ranks; from any thread. Does not return."""
    if supervised.is_supervised():
        leave(status)
    # Should MPI be stuck in another thread, leave without it: the launcher ends the others.
    last_resort = threading.Timer(1.0, os._exit, [status])
    last_resort.daemon = True
    last_resort.start()
    time.sleep(0.1)  # the launcher passes on what was just written, and drops it once it ends ranks
    comm.Abort(status)


def leave(status):
    """End this process, which has said why; the launcher that supervises ends the others."""
    sys.stdout.flush()
    sys.stderr.flush()
    forget_shared_memory()  # this may be inside of world()
    supervised.say("failed", status=status)
    os._exit(status)


def forget_shared_memory():
    """Remove the name of MPICH's shared memory. `world()` does so when all ranks have it mapped,
    and a rank that ends itself. MPICH does so at the end of a run; of one that is killed 2 MB and
    more would stay in /dev/shm, which in a container has room for 64."""
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for path in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with contextlib.suppress(OSError):  # another rank was first
                os.unlink(path)
