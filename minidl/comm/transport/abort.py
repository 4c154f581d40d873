"""One rank that fails ends all ranks: MPI alone would leave the others waiting for it for ever.

    an exception that nobody catches            Python calls sys.excepthook: `world()` sets ours
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

from minidl.comm.observe.places import is_ours, spot, translation
from minidl.comm.transport import supervised

TOGETHER_S = 0.5  # between the first and the last of ranks that all leave by the same sys.exit


def abort_on_failure(mpi):
    """From now on, and until MPI is finalised, a failure of this process, in any thread, ends all.

    mpi: the module mpi4py.MPI."""
    comm = mpi.COMM_WORLD
    if comm.size == 1 or getattr(sys.excepthook, "aborts_mpi", False):
        return

    def end(status):
        if not mpi.Is_finalized():
            end_all(comm, status)

    _set_hooks(f"rank {comm.rank}: ", end)  # asked now: MPI does not answer once it is finalised


def name_the_rank(rank):
    """The same under a launcher that supervises, from the first line of the script on.

    rank: None if this launcher has no variable that tells; `abort_on_failure` will know it."""
    _set_hooks("" if rank is None else f"rank {rank}: ", leave)
    sys.excepthook.aborts_mpi = rank is not None


def _set_hooks(prefix, end):
    # says an error in the reader's language (course/language.py), which comm does not know
    explain, translate = getattr(sys.excepthook, "explain", lambda error: None), translation.get()

    def abort(kind, error, trace):
        explain(error)
        if kind is SystemExit:
            text = translate(f"sys.exit({error.code!r}) at {line_of(trace)}, but not on all ranks: "
                             "it ends them all\n")
        else:
            text = "".join(traceback.format_exception(kind, error, trace))
        sys.stdout.flush()
        sys.stderr.write("".join(prefix + line for line in text.splitlines(keepends=True)))
        sys.stderr.flush()
        first = next(iter(str(error).splitlines()), "")
        supervised.say("why", how=f"{kind.__name__}: {first}"[:300], line=line_of(trace))
        end(status_of(error) if kind is SystemExit else 1)

    def abort_in_thread(args):
        if not issubclass(args.exc_type, SystemExit):  # which ends the thread alone
            abort(args.exc_type, args.exc_value, args.exc_traceback)

    abort.aborts_mpi = True
    sys.excepthook, threading.excepthook = abort, abort_in_thread


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
    supervised.say("failed", status=status)
    os._exit(status)
