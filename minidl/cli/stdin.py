"""The standard input of a run: `minidl run --stdin FILE` opens FILE as rank 0's standard input.

mpiexec passes its own standard input on to rank 0. But if rank 0 does not read this input, MPICH's
mpiexec dies after 64 KB, and Open MPI's mpiexec hangs. So `minidl run ... < FILE` is an error. A
pipe that holds data is an error, too.
FILE may be a FIFO. Rank 0 must be able to open FILE on its host.

Test: tests/cli/test_numa.py   Used by: launcher.py, rank.py
"""

import os
import select
import stat

VARIABLE = "MINIDL_STDIN"


def given(fd=0):
    """Returns the name of the file on standard input, or "a pipe" for a pipe. Returns None if there
    is no data to read."""
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
        pass  # standard input is closed, or the system has no /proc
    return None


def _polled(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return poll.poll(0)


def refusal(name):
    """Returns the error text for a user who types `minidl run ... < name`."""
    if name == "a pipe":
        return ("standard input is a pipe with data, and mpiexec may lose a part of the data. "
                "Read the data in the script, by minidl.data.Pipe('the command', t), or from a "
                "FIFO, with --stdin FIFO. If the script needs no input: < /dev/null")
    return (f"standard input is {name}, and mpiexec may lose a part of it (MPICH's mpiexec dies "
            f"after 64 KB, Open MPI's hangs). Write: --stdin {name}")


def take(environ, rank):
    """Opens the file of --stdin as the standard input of rank 0, and an empty file for the other
    ranks. Does nothing without --stdin."""
    file = environ.pop(VARIABLE, None)
    if file is not None:
        fd = os.open(os.devnull if rank else file, os.O_RDONLY)
        os.dup2(fd, 0)
        os.close(fd)
