"""minidl run --hosts FILE: starts ranks on several hosts, if the hosts answer.

    node1 slots=2        a name, and how many ranks the host takes (default: 1)
    node2 slots=2        empty lines and lines that begin with # are ignored

--hosts slurm takes the hosts of the current Slurm job, from its variables (`man srun`):
    SLURM_JOB_NODELIST=gpu[01-02,7],login  SLURM_TASKS_PER_NODE=2(x3),1

Before each attempt every host is asked to run the command `true`. srun asks the hosts in a Slurm
job. Otherwise ssh asks them, as in MPI's own launchers. If HYDRA_LAUNCHER_EXEC is set (for MPICH),
the program in this variable asks the hosts. A host that does not answer in ASK_S seconds gets no
ranks, but is asked again before the next attempt.
Test: tests/cli/test_hosts.py   Used by: launcher.py
"""

import itertools
import os
import re
import subprocess
import time
from pathlib import Path

ASK_S, SLURM = 10.0, "slurm"
LINE = re.compile(r"(?P<name>[\w.:-]+)(\s+slots=(?P<slots>[1-9]\d*))?")


def read(path):
    """Returns {host: number of ranks on this host}, in the order of the file. path: a file, or
    "slurm". Raises ValueError if the file cannot be read, or if a line is wrong."""
    if str(path) == SLURM:
        return of_slurm(os.environ)
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    hosts = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        found = LINE.fullmatch(line)
        if not found or found["name"] in hosts:
            raise ValueError(f"{path}, line {number}: wanted a new host, as in `node1 slots=4`; "
                             f"got {line!r}")
        hosts[found["name"]] = int(found["slots"] or 1)
    if not hosts:
        raise ValueError(f"{path} has no hosts; wanted lines such as `node1 slots=4`")
    return hosts


def of_slurm(env):
    """Returns {host: number of tasks} of the Slurm job with the variables `env`. Raises ValueError
    if a variable is missing, or if SLURM_TASKS_PER_NODE does not have one count for each host."""
    try:
        nodes, tasks = env["SLURM_JOB_NODELIST"], env["SLURM_TASKS_PER_NODE"]
    except KeyError as error:
        raise ValueError(f"slurm: {error.args[0]} is not set; wanted a Slurm job (sbatch or "
                         "salloc) of several tasks") from None
    names = [name for group in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
             for name in _expanded(group)]
    slots = [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
             for _ in range(int(times or 1))]
    if len(names) != len(slots):
        raise ValueError(f"slurm: SLURM_JOB_NODELIST={nodes} has {len(names)} hosts, but "
                         f"SLURM_TASKS_PER_NODE={tasks} is for {len(slots)} hosts")
    return dict(zip(names, slots, strict=True))


def _expanded(group):
    """Returns a list of names of hosts. group: one name with ranges of numbers. For example,
    rack[1-2]n[08-10,12] gives rack1n08, rack1n09, ...
    """
    parts = [[text] if i % 2 == 0 else _numbers(text)
             for i, text in enumerate(re.split(r"\[([^\]]*)\]", group))]
    return ["".join(name) for name in itertools.product(*parts)]


def _numbers(ranges):
    """Returns a list of numbers as text. "08-10,12" gives 08, 09, 10, 12."""
    ends = [(part.partition("-")[0], part.rpartition("-")[2]) for part in ranges.split(",")]
    return [f"{i:0{len(a)}}" for a, b in ends for i in range(int(a), int(b) + 1)]


def answering(hosts, ask_s=ASK_S):
    """Returns {host: slots} with only those hosts that run a command within ask_s seconds."""
    if own := os.environ.get("HYDRA_LAUNCHER_EXEC"):
        agent = [own]  # HYDRA_LAUNCHER_EXEC is a path. MPICH does not allow options in it
    elif "SLURM_JOB_ID" in os.environ:
        agent = ["srun", "--overlap", "-N1", "-n1", "-w"]
    else:
        agent = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={ask_s:.0f}"]
    asked = {host: subprocess.Popen([*agent, host, "true"], stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
             for host in hosts}
    until, found = time.monotonic() + ask_s, {}
    for host, process in asked.items():
        try:
            if process.wait(max(0.0, until - time.monotonic())) == 0:
                found[host] = hosts[host]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return found


def places(hosts, n):
    """Returns a text with the hosts for n ranks, in the form that mpiexec reads, such as
    node1:2,node2:1. Fills the first hosts first."""
    given = []
    for host, slots in hosts.items():
        if (here := min(slots, n)) > 0:
            given.append(f"{host}:{here}")
            n -= here
    return ",".join(given)
