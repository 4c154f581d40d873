"""One rank that fails ends all: MPI alone would leave the others waiting for it for ever.

    an exception that nobody catches, in any thread     Python calls a hook for it: ours
    sys.exit(1), unless all ranks leave so              Python calls none: see Exit

Then a traceback or a line on stderr that names the rank, and MPI_Abort. (ChainerMN's
global_except_hook and `python -m mpi4py` do the same.) `raise SystemExit(1)` and os._exit(1) are
not seen here: the first ends all under `minidl run`, the second under any launcher.

Test: tests/mpi/test_abort.py   Used by: mpi.py
"""

import os
import sys
import threading
import time
import traceback

from minidl.comm.observe.places import spot, user_line

TOGETHER_S = 0.5  # between the first and the last of ranks that all leave by the same sys.exit


def abort_on_failure(mpi):
    """From now on, and until MPI is finalised, a failure of this process, in any thread, ends all.

    mpi: the module mpi4py.MPI.
    """
    comm = mpi.COMM_WORLD
    if comm.size == 1 or getattr(sys.excepthook, "aborts_mpi", False):
        return
    prefix = f"rank {comm.rank}: "  # asked now: MPI does not answer once it is finalised

    def abort(kind, error, trace):
        text = "".join(traceback.format_exception(kind, error, trace))
        status = 1
        if issubclass(kind, Exit):
            at, status = spot(*error.line) if error.line else "a line of minidl", error.status
            text = f"sys.exit({error.args[0]!r}) at {at}, but not on all ranks: it ends them all\n"
        sys.stdout.flush()
        sys.stderr.write("".join(prefix + line for line in text.splitlines(keepends=True)))
        sys.stderr.flush()
        if not mpi.Is_finalized():
            end_all(comm, status)

    def left(error):
        if error.status and not mpi.Is_finalized() and not _all_leave(comm):
            sys.excepthook(type(error), error, None)  # lookout.py has a word there, too

    def abort_in_thread(args):
        if not issubclass(args.exc_type, SystemExit):  # which ends the thread alone
            abort(args.exc_type, args.exc_value, args.exc_traceback)

    def leave(status=None):
        raise Exit(status, user_line(sys._getframe(1)), left)

    abort.aborts_mpi = True
    sys.excepthook, threading.excepthook, sys.exit = abort, abort_in_thread, leave


class Exit(SystemExit):
    """What sys.exit raises on a rank.

    Where nobody catches it Python calls no hook, but asks it for its `code`, from the interpreter
    itself and not from a frame of a program. That question is our hook: `left(self)`.
    """

    def __init__(self, code, line, left):
        super().__init__(code)
        self.line, self._left = line, left

    @property
    def code(self):
        if sys._getframe().f_back is None:
            self._left(self)
        return self.args[0]

    @property
    def status(self):
        """The process's exit status."""
        code = self.args[0]
        return code if isinstance(code, int) else int(code is not None)


def _all_leave(comm):
    """Whether all ranks come here within TOGETHER_S: then each ends by itself."""
    sys.stdout.flush()  # a launcher ends the others when the first has left with such a status
    barrier, until = comm.Ibarrier(), time.monotonic() + TOGETHER_S
    while not (here := barrier.Test()) and time.monotonic() < until:
        time.sleep(1e-3)
    return here


def end_all(comm, status=1):
    """End all ranks; from any thread. Does not return."""
    # Should MPI be stuck in another thread, leave without it: the launcher ends the others.
    last_resort = threading.Timer(1.0, os._exit, [status])
    last_resort.daemon = True
    last_resort.start()
    time.sleep(0.1)  # the launcher passes on what was just written, and drops it once it ends ranks
    comm.Abort(status)
