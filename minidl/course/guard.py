"""Two processes between the grader and the student's code, so that the code cannot end the grader.

    minidl class ──── guard ──── keeper ──── the student's code
         └── a pipe ──┘             └── on Linux a PID namespace of its own, where that is allowed

The code's parent is the keeper: a signal to the parent, to its group or to all processes does not
reach the grader. In a namespace the code can name no other process, and its processes end with the
keeper, also those with a session of their own. Elsewhere guard and keeper look for what is left,
and end it; there, code that looks for the grader's number in /proc may find it.
The pipe is a watchdog: when the grader ends, in whatever way, the guard reads its end and ends the
rest. On Linux the kernel tells it, too (PR_SET_PDEATHSIG).

This file is run as a script and imports little: it forks before NumPy has threads.
Source: prctl(2), pid_namespaces(7).   Test: tests/course/test_guard.py   Used by: student.py
"""

import contextlib
import ctypes
import os
import select
import signal
import struct
import sys

PDEATHSIG, SUBREAPER = 1, 36  # prctl's
NEWUSER, NEWPID = 0x10000000, 0x20000000  # unshare's
LOOK_S = 0.02  # between two looks at the child
ROUNDS = 200  # of looking for processes that are left: each may have begun others

_terminated = []  # SIGTERM, if it came


def main(grader, path, deadline, seed, life, requests, replies):
    """The guard. life: the pipe whose other end the grader has."""
    requests, replies, life = int(requests), int(replies), int(life)
    _end_with_parent()
    told, tell = os.pipe()  # the keeper says how the student's process ended
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
    """The keeper: start the student's process, wait for it, say how it ended."""
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
    if not inside:  # else the kernel ends the rest of the namespace with this process
        _end_the_rest()
    os._exit(0)


def _serve(*arguments):
    sys.path[0] = os.getcwd()  # as `python -m` has it, in place of this file's folder
    # as an imported module: the graders' `Wrong` is minidl.course.student.Wrong, not __main__.Wrong
    from minidl.course import student

    student.serve(*arguments)
    sys.stdout.flush()


def _wait(child, life=None):
    """Returns how the child ended; kills it when the other end of `life` is closed, or the kernel
    says that this process's parent has ended."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)  # also of others, whose parents have ended
        if pid == child:
            return status
        ended = select.select([life] if life is not None else [], [], [], 0 if pid else LOOK_S)[0]
        if ended or _terminated:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]


def _end_the_rest():
    """Kill the children that this process has inherited, until there are none."""
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
    except (OSError, ValueError):  # no Linux
        return []


def _end_like(status):
    """End this process as that one ended."""
    if os.WIFSIGNALED(status):
        with contextlib.suppress(Exception):  # no core file of this process
            import resource
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


# -- Linux


def _linux():
    """The C library; None on other systems."""
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _end_with_parent():
    """The kernel sends SIGTERM when the parent ends, and this process inherits the children of its
    children."""
    signal.signal(signal.SIGTERM, lambda number, frame: _terminated.append(number))
    if libc := _linux():
        libc.prctl(PDEATHSIG, signal.SIGTERM)
        libc.prctl(SUBREAPER, 1)


def _own_namespace():
    """The next child begins a PID namespace; returns whether the system allows it."""
    libc, uid, gid = _linux(), os.getuid(), os.getgid()
    if not libc:
        return False
    if libc.unshare(NEWPID) == 0:  # root
        return True
    if libc.unshare(NEWUSER | NEWPID):
        return False
    with contextlib.suppress(OSError):  # the same user inside; else nobody, who may read, too
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"),
                           ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
