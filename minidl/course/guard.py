"""Two processes between the grader and the student's code, so that the code cannot end the grader.

    minidl class ──── guard ──── keeper ──── the student's code
         └── a pipe ──┘             └── on Linux a PID namespace of its own, if it is allowed

The keeper is the parent of the student's code. So a signal to the parent, or to the parent's group,
does not reach the grader. A process in a PID namespace cannot send signals to a process outside of
the namespace. When the keeper ends, the kernel ends all processes in the keeper's namespace, also
processes with their own session. Without a namespace, guard and keeper look for processes that are
left, and end them. But then the code could find the grader's process number in /proc.

The pipe is a watchdog. When the grader ends, for any reason, the pipe is closed. The guard notices
this, and ends the other processes. On Linux the kernel also sends the guard a signal
(PR_SET_PDEATHSIG).

This file is run as a script, and imports little, because it must fork before NumPy starts threads.
Source: prctl(2), pid_namespaces(7).   Test: tests/course/test_guard.py   Used by: student.py
"""

import contextlib
import ctypes
import os
import select
import signal
import struct
import sys

PDEATHSIG, SUBREAPER = 1, 36  # constants of prctl
NEWUSER, NEWPID = 0x10000000, 0x20000000  # constants of unshare
LOOK_S = 0.02  # seconds between two checks whether the child has ended
ROUNDS = 200  # the largest number of searches for remaining processes; these may start others

_terminated = []  # has an element if SIGTERM came


def main(grader, path, deadline, seed, life, requests, replies):
    """Runs the guard. life: the file descriptor of the watchdog's pipe. The grader holds the other
    end of this pipe. The other arguments are for student.serve."""
    requests, replies, life = int(requests), int(replies), int(life)
    _end_with_parent()
    told, tell = os.pipe()  # through this pipe the keeper tells how the student's process ended
    inside = _own_namespace()
    keeper = os.fork()
    if not keeper:
        os.close(told)
        _keep(inside, tell, life, (grader, path, float(deadline), int(seed), requests, replies))
    for file in tell, requests, replies:
        os.close(file)
    status = _wait(keeper, life)
    said = os.read(told, 4) if select.select([told], [], [], 0)[0] else b""
    _end_the_rest()
    _end_like(struct.unpack("i", said)[0] if len(said) == 4 else status)


def _keep(inside, tell, life, arguments):
    """Runs the keeper. The keeper starts the student's process, waits for its end, and tells the
    guard how the process ended.

    inside: True if the keeper is in a PID namespace of its own. tell: the pipe to the guard."""
    os.close(life)
    _end_with_parent()
    child = os.fork()
    if not child:
        os.close(tell)
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if libc := _linux():
            libc.prctl(PDEATHSIG, signal.SIGKILL)
        _serve(*arguments)
        os._exit(0)
    for file in arguments[-2:]:
        os.close(file)
    status = _wait(child)
    os.write(tell, struct.pack("i", status))
    if not inside:  # in a namespace the kernel ends all processes when the keeper ends
        _end_the_rest()
    os._exit(0)


def _serve(*arguments):
    sys.path[0] = os.getcwd()  # the current folder, as with `python -m`
    # student.py is imported, so that the graders' `Wrong` is minidl.course.student.Wrong
    from minidl.course import student

    student.serve(*arguments)
    sys.stdout.flush()


def _wait(child, life=None):
    """Waits for the end of the child. Returns its wait status. Kills the child if the other end of
    `life` is closed, or if SIGTERM came. Both mean that the parent of this process has ended."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)  # any child, also one that was inherited
        if pid == child:
            return status
        ended = select.select([life] if life is not None else [], [], [], 0 if pid else LOOK_S)[0]
        if ended or _terminated:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]


def _end_the_rest():
    """Kills the child processes that this process has inherited, until none is left."""
    for _ in range(ROUNDS):
        for pid in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.select([], [], [], 0.01)


def _children():
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except (OSError, ValueError):  # not on Linux
        return []


def _end_like(status):
    """Ends this process in the way that `status` describes: with an exit code, or by a signal."""
    if os.WIFSIGNALED(status):
        with contextlib.suppress(Exception):  # so that this process writes no core file
            import resource
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


# -- Linux


def _linux():
    """Returns the C library, or None on systems other than Linux."""
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _end_with_parent():
    """Asks Linux to send SIGTERM to this process when its parent ends. Also lets this process
    inherit the processes that its children have started: when a child ends, this process becomes
    their parent."""
    signal.signal(signal.SIGTERM, lambda number, frame: _terminated.append(number))
    if libc := _linux():
        libc.prctl(PDEATHSIG, signal.SIGTERM)
        libc.prctl(SUBREAPER, 1)


def _own_namespace():
    """Lets the next child process begin a new PID namespace. Returns True if the system allows
    this."""
    libc, uid, gid = _linux(), os.getuid(), os.getgid()
    if not libc:
        return False
    if libc.unshare(NEWPID) == 0:  # for root this call is enough
        return True
    if libc.unshare(NEWUSER | NEWPID):
        return False
    # Keep the same user. If this fails, the user is called "nobody", and can still read files.
    with contextlib.suppress(OSError):
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                           ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
