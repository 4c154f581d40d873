"""One rank of `minidl run`: a guard, and the process that runs the script.

    mpiexec -- guard (waits)        Only a parent process learns how its child ended: by which
                 |                  signal, with which status. mpiexec prints little about this. So
                 '-- rank 2: script each rank has its own parent, the guard. The guard tells the
                                    launcher (supervisor.py) how the rank ended.

The first process forks before it imports minidl. The parent is the guard, and waits for signals.
The guard inherits the connection to mpiexec. So MPICH's mpiexec does not notice the death of a
rank. Without a guard, mpiexec kills the other ranks before the launcher knows the reason.

The script runs as in `python script.py`, with four differences. stdout is written line by line. The
first line of a traceback names the rank. The rank tells the launcher how the script ends. A thread
answers when the launcher asks for the rank's place in the script. `python -m minidl.cli.rank
script.py` also works, under any mpiexec and without `minidl run`. Then there is no guard. If a rank
fails, abort.guarded ends all ranks through MPI.

Test: tests/cli/test_supervisor.py, tests/mpi/test_abort.py   Used by: launcher.py
"""

import contextlib
import ctypes
import os
import platform
import runpy
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])  # the folder that contains minidl
SUPERVISOR = "MINIDL_SUPERVISOR"  # "addresses,port,token", set by supervisor.py
CONNECT_S = 5.0  # seconds to connect to the launcher
GUARD_S = 5.0  # seconds for the guard to end its rank
OTHERS_S = 2.0  # seconds for the other guards to end their ranks
DOOR = f"{ROOT}/minidl/comm/observe/door.py"
TRACES = f"{ROOT}/minidl/cli/traces.py"


def main():
    del sys.argv[0]
    # sys.path is the same as in `python script.py`, with ROOT at its end. Without ROOT, a folder
    # named minidl next to the script would be imported instead of the package. (A folder without
    # __init__.py is imported only if sys.path has no package of this name.)
    if not sys.flags.safe_path:
        del sys.path[0]
    sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
    if ROOT not in sys.path:
        sys.path.append(ROOT)
    # with MINIDL_HEAL a rank may start new ranks, which need the variable SUPERVISOR
    heals = os.environ.get("MINIDL_HEAL") == "1"
    where = os.environ.get(SUPERVISOR) if heals else os.environ.pop(SUPERVISOR, None)
    links = _links(where) if where else None
    if links is None:
        _run_unsupervised()
        return
    guards, ranks = links
    parent = os.getpid()
    pid = os.fork()
    if pid:
        ranks.close()
        _guard(guards, pid, heals)
    guards.close()
    _die_with(parent)
    _run(ranks)


def _links(where):
    """Returns two connections to the launcher: one for the guard, and one for the rank. Returns
    None if the launcher cannot be reached. If the launcher has ended, its host refuses the
    connection, and this function ends the process. If the launcher ends during the call, its host
    resets the connection, or the pipe is broken. Then this function ends the process, too."""
    addresses, port, token = where.split(",")
    addresses = [(address, int(port)) for address in addresses.split("+")]
    door = runpy.run_path(DOOR)  # `import` would import the package minidl, too
    me, links = door["new_caller"](), []
    try:
        for i, say in enumerate(("guard", "born")):
            lines, _ = door["call"](addresses, door["proof"](token, me, i), CONNECT_S, say=say,
                                    rank=_launched_rank(), host=platform.node(),
                                    hydra="PMI_FD" in os.environ)  # True under MPICH's mpiexec
            lines.connection.settimeout(None)
            links.append(lines)
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        sys.stderr.write("minidl run: the launcher has ended, so this rank ends\n")
        os._exit(1)
    except OSError as error:
        sys.stderr.write(
            f"minidl run: {platform.node()} cannot reach the launcher ({error}), so this rank is "
            "not supervised. If this rank is killed, or ends before world(), the other ranks may "
            "wait for ever.\n")
        return None
    return links


def _launched_rank():
    """Returns the number of this rank from the variables that mpiexec sets, or None. The guard
    needs this number before minidl is imported, so it cannot call supervised.launched_as."""
    # comm/transport/ulfm.py sets this variable for a process that replaces a dead rank
    if "MINIDL_NEWCOMER" in os.environ:
        numbers = os.environ["MINIDL_NEWCOMER"].split()[1].split(",")
        return int(numbers[int(os.environ["OMPI_COMM_WORLD_RANK"])])
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


def _send(link, **line):
    with contextlib.suppress(OSError):
        link.say(**line)


# -- the guard


def _guard(link, pid, heals=False):
    """Tells the launcher when the process `pid` stops, continues and ends. Ends the process when
    the launcher asks for this, or when the launcher has ended. Does not return.

    heals: if True and the rank fails, the guard kills itself by a signal. Open MPI tells the other
    ranks about the death only if the guard ends in this way."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # the rank gets these signals, too; the guard ignores them, and ends after the rank
        signal.signal(number, signal.SIG_IGN)
    _send(link, say="runs", pid=pid)
    status = None
    while True:
        while status is None:
            found, how = os.waitpid(pid, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not found:
                break
            if os.WIFSTOPPED(how) or os.WIFCONTINUED(how):
                _send(link, say="stopped" if os.WIFSTOPPED(how) else "continued")
            else:
                status = os.waitstatus_to_exitcode(how)
                _send(link, say="exit", status=status)
                if heals and status:
                    os.kill(os.getpid(), signal.SIGKILL)
        ready, _, _ = select.select([link, woken], [], [])
        if link in ready:  # the launcher asks the guard to end, or the launcher has ended
            break
        woken.recv(4096)
    if status is None:
        traces = runpy.run_path(TRACES)
        os.kill(pid, signal.SIGSTOP)  # stops the rank, so that it makes no new files
        os.waitpid(pid, os.WUNTRACED)
        held = traces["of"](pid)  # MPI's files that the rank uses
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        traces["remove"](held)
        if not any(line.get("ask") == "end" for line in link.heard()):
            # The launcher has ended. When the first guard ends, MPICH's mpiexec kills the other
            # guards. So each guard waits until all guards have removed their files.
            time.sleep(OTHERS_S)
    _send(link, say="ended")
    os._exit(status if status is not None and status >= 0 else 1)


def _die_with(parent):
    """Makes Linux end this process when its guard ends. On other systems the launcher tells the
    process to end."""
    with contextlib.suppress(OSError, AttributeError):
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the guard had ended before the call of prctl
            os._exit(1)


# -- the rank


def _run_unsupervised():
    _line_by_line()
    _own_gpu_and_stdin()
    from minidl.comm.transport import abort

    with abort.guarded():
        _script()


def _script():
    def work():
        runpy.run_path(sys.argv[0], run_name="__main__")

    if "MINIDL_PROFILE" not in os.environ:
        return work()
    from minidl.cli import profiled

    profiled.in_ranks(work)


def _own_gpu_and_stdin():
    from minidl.cli import gpus, stdin

    os.environ.update(gpus.own_gpu(os.environ))
    stdin.take(os.environ, _launched_rank())


def _line_by_line():
    # Under mpiexec stdout is a pipe with a buffer. If a rank hangs or is aborted, the text in its
    # buffer is lost. PYTHONUNBUFFERED would write each argument of a print separately, and the
    # lines of several ranks would mix.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)


def _run(link):
    """Runs the script, and tells the launcher how it ends."""
    from minidl.comm.transport import supervised

    os.environ[supervised.LINK] = f"{link.fileno()}:{os.getpid()}"
    threading.Thread(target=_answer, args=(link,), name="minidl answers", daemon=True).start()
    _line_by_line()
    _own_gpu_and_stdin()
    from minidl.comm.transport import abort

    rank = _launched_rank()
    in_language = contextlib.nullcontext()
    if os.environ.get("MINIDL_LANG"):
        from minidl.course import language

        in_language = language.errors_translated()
    try:
        with in_language:
            abort.name_the_rank(rank)
            _script()
    except SystemExit as error:
        status = abort.status_of(error)
        if status:
            supervised.say("exits", status=status, code=repr(error.code)[:300],
                           line=abort.line_of(error.__traceback__))
        else:
            _say_finished()
        raise
    except KeyboardInterrupt as error:
        who = "a rank" if rank is None else f"rank {rank}"
        sys.stderr.write(f"{who}: interrupted at {abort.line_of(error.__traceback__)}\n")
        abort.leave(130)
    except BaseException as error:
        sys.excepthook(type(error), error, _of_script(error.__traceback__))
        abort.leave(1)
    _say_finished()


def _say_finished():
    from minidl.comm.transport import supervised

    supervised.say("finished", mpi="mpi4py.MPI" in sys.modules)


def _of_script(trace):
    """Returns the part of a traceback that begins in the script. The calls in this file and in
    runpy are left out."""
    first = trace
    while first is not None and (first.tb_frame.f_code.co_filename == __file__
                                 or first.tb_frame.f_globals.get("__name__") == "runpy"):
        first = first.tb_next
    return first or trace


def _answer(link):
    """Reads the messages of the launcher. If the launcher asks for this rank's place in the script,
    sends the place. For any other message, ends the rank.

    When the launcher ends, the guard ends this rank. The rank must still run then, so that the
    guard can see which files MPI has made. If the guard has ended as well, the rank ends itself
    after GUARD_S seconds."""
    from minidl.comm.observe.places import places_now, said

    main = threading.main_thread().ident
    while not link.over:
        for line in link.heard():
            if line.get("ask") != "where":
                os._exit(1)
            frames = sys._current_frames()
            at, serves = _position(frames.get(main)), any(map(_serves, frames.values()))
            del frames  # a frame keeps its arrays in memory
            _send(link, say="where", line=said(places_now().get(main)), at=at, serves=serves)
    time.sleep(GUARD_S)
    os._exit(1)


def _position(frame):
    """Returns a short text for the place in the code where a thread is. The text changes when the
    thread executes another instruction. frame: the thread's innermost frame, or None."""
    places = []
    while frame is not None:
        places.append(f"{frame.f_code.co_name}+{frame.f_lasti}")
        frame = frame.f_back
    return f"{hash(' '.join(places)):x}"


def _serves(frame):
    """Returns True if a thread answers remote calls. Such a thread may wait for any length of time.
    frame: the thread's innermost frame."""
    while frame is not None:
        if frame.f_code.co_name == "_serve_one" and "minidl" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    main()
