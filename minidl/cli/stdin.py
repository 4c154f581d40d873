"""Standard input of a run: `minidl run --stdin FILE` opens FILE as rank 0's, never mpiexec's.

mpiexec would pass its own on to rank 0. MPICH's dies once 64 KB wait for a rank that does not read,
Open MPI's hangs; so `minidl run ... < FILE` is refused, and so is a pipe with something in it.
FILE may be a FIFO; rank 0 must be able to open it on its host.

Test: tests/cli/test_numa.py   Used by: launcher.py, rank.py
"""

import os
import select
import stat

VARIABLE = "MINIDL_STDIN"


def given(fd=0):
    """What stands on standard input to be read: a name; None if nothing does."""
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            if os.lseek(fd, 0, os.SEEK_CUR) >= os.fstat(fd).st_size:
                return None
            return os.readlink(f"/proc/self/fd/{fd}")
        if stat.S_ISFIFO(mode) and any(
                event & select.POLLIN for _, event in _polled(fd)):
            return "a pipe"
    except OSError:
        pass  # closed, or a system without /proc: nothing can be said
    return None


def _polled(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return poll.poll(0)


def refusal(name):
    """The sentence for one who types `minidl run ... < name`."""
    if name == "a pipe":
        return ("standard input is a pipe with something in it, which mpiexec does not pass on "
                "whole. Read it in the script: minidl.data.Pipe('the command', t); or from a "
                "FIFO: --stdin FIFO. If nothing is to be read: < /dev/null")
    return (f"standard input is {name}, which mpiexec does not pass on whole (MPICH's dies past 64 "
            f"KB, Open MPI's hangs). Say: --stdin {name}")


def take(environ, rank):
    """In a rank: make the file of --stdin its standard input; nothing for the others."""
    file = environ.pop(VARIABLE, None)
    if file is not None:
        fd = os.open(os.devnull if rank else file, os.O_RDONLY)
        os.dup2(fd, 0)
        os.close(fd)
