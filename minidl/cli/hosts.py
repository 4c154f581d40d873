"""minidl run --hosts FILE: several hosts, and those of them that answer.

    node1 slots=2        a name, and how many ranks it takes: 1, if it does not say
    node2 slots=2        an empty line, or one that begins with #, says nothing

--hosts slurm: those of the Slurm job that this runs in, from its variables (`man srun`):
    SLURM_JOB_NODELIST=gpu[01-02,7],login  SLURM_TASKS_PER_NODE=2(x3),1

Before each attempt every host is asked to run `true`, by ssh as MPI's own launchers do it, or by
srun. One that does not answer in ASK_S seconds has no place for ranks; it is asked again before the
next attempt. In place of both: what MPICH is told by HYDRA_LAUNCHER_EXEC.
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
    """{host: ranks that it takes}, in the file's order; ValueError with what is wrong with it."""
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
        raise ValueError(f"{path} names no host: wanted lines as `node1 slots=4`")
    return hosts


def of_slurm(env):
    """{host: tasks} of a Slurm job."""
    try:
        nodes, tasks = env["SLURM_JOB_NODELIST"], env["SLURM_TASKS_PER_NODE"]
    except KeyError as error:
        raise ValueError(f"slurm: {error.args[0]} is not set: wanted a Slurm job (sbatch or "
                         "salloc) of several tasks") from None
    names = [name for group in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
             for name in _expanded(group)]
    slots = [int(n) for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks)
             for _ in range(int(times or 1))]
    if len(names) != len(slots):
        raise ValueError(f"slurm: {nodes} are {len(names)} hosts, {tasks} are the tasks of "
                         f"{len(slots)}")
    return dict(zip(names, slots, strict=True))


def _expanded(group):
    """The names of rack[1-2]n[08-10,12]: rack1n08, rack1n09, ..."""
    parts = [[text] if i % 2 == 0 else _numbers(text)
             for i, text in enumerate(re.split(r"\[([^\]]*)\]", group))]
    return ["".join(name) for name in itertools.product(*parts)]


def _numbers(ranges):
    """08-10,12: 08, 09, 10, 12."""
    ends = [(part.partition("-")[0], part.rpartition("-")[2]) for part in ranges.split(",")]
    return [f"{i:0{len(a)}}" for a, b in ends for i in range(int(a), int(b) + 1)]


def answering(hosts, ask_s=ASK_S):
    """Those of {host: slots} that run a command when asked."""
    if own := os.environ.get("HYDRA_LAUNCHER_EXEC"):
        agent = [own]  # a path, as MPICH takes it: no options
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
    """node1:2,node2:1 for n ranks, the first hosts full."""
    given = []
    for host, slots in hosts.items():
        if (here := min(slots, n)) > 0:
            given.append(f"{host}:{here}")
            n -= here
    return ",".join(given)
