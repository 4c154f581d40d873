"""Ranks that fail in every way: does each run end, name the rank, and the line where there is one?

    make faults                      random faults, both MPIs        make faults ARGS="200 7"
                                                                     200 runs, seed 7

Test: test_supervisor.py runs some of them.
"""

import collections
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mpi.launch import PYTHONS, ROOT

# What rank `bad` does, and where: "before" world(), "after" it, or in the "middle".
SCRIPT = """\
import os, signal, sys, time
how, when, bad = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", -1)))
def fail(here):
    if rank != bad or here != when: return
    if how == "raise": raise KeyError("planted")
    if how == "import": import no_such_module
    if how in ("sys.exit", "return"): sys.exit(3 if how == "sys.exit" else 0)
    if how == "os._exit(0)": os._exit(0)
    if how == "os._exit(4)": os._exit(4)
    if how == "SIGSTOP": os.kill(os.getpid(), signal.SIGSTOP)
    if how == "SIGKILL": os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleep": time.sleep(1000)
fail("before")
import numpy as np
from minidl.comm import ring, world
t = world()
fail("after")
x = np.ones(1000)
ring.all_reduce(t, x)
fail("middle")
if how == "raw" and t.rank != bad:
    from mpi4py import MPI
    MPI.COMM_WORLD.Barrier()
if how != "skip" or t.rank != bad:
    ring.all_reduce(t, x[: 999 if how == "sizes" and t.rank == bad else None])
print("done")
"""



def line_of(text):
    """The number of the first line of SCRIPT that has this text."""
    return 1 + next(i for i, line in enumerate(SCRIPT.splitlines()) if text in line)


# (how, when): (status, the last words, {bad} being the rank; its {line}, or None). Fewer seconds of
# patience where nobody can know that the rank will not go on.
ANYWHERE = {
    "raise": (1, r"rank {bad}: KeyError: 'planted'", line_of("raise")),
    "import": (1, r"rank {bad}: ModuleNotFoundError: No module named 'no_such_module'",
               line_of("no_such_module")),
    "sys.exit": (3, r"rank {bad} .*called sys.exit\(3\) at .*script.py:{line}, but not all",
                 line_of("sys.exit(3")),
    "os._exit(0)": (1, r"rank {bad} .*ended {when} with status 0", None),
    "os._exit(4)": (4, r"rank {bad} .*ended {when} with status 4", None),
    "SIGKILL": (137, r"rank {bad} .*was killed by SIGKILL {when}", None),
    "SIGSTOP": (1, r"rank {bad} .*stopped by a signal", None),
    "sleep": (1, r"rank {bad} .*at .*script.py:{line}", line_of("time.sleep")),
}
FAULTS = {(how, when): said for how, said in ANYWHERE.items()
          for when in ("before", "after", "middle")}
FAULTS |= {
    ("return", "before"): (
        1, r"rank {bad} .*ended its script before world\(\), where rank.* would wait", None),
    ("nothing", "ever"): (0, r"\A\Z", None),
    ("raw", "ever"): (1, r"rank {bad} ", None),
    ("skip", "ever"): (1, r"rank {bad} has ended \(its last collective: .*at .*script.py:{line}\)",
                       line_of("all_reduce(t, x)")),
    ("sizes", "ever"): (1, r"rank {bad}: .*ring.all_reduce\(x float64 \(999,\).*script.py:{line}",
                        line_of("x[: 999")),
}
WHEN = {"before": r"before world\(\)", "after": "in the middle of its script",
        "middle": "in the middle of its script"}


def minidl_run(mpi, *words, n=3, limit_s=60):
    """`minidl run -n 3 *words` with one of PYTHONS; a CompletedProcess with text output."""
    command = [PYTHONS[mpi], "-m", "minidl", "run", "-n", str(n), *map(str, words)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True)
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\nHUNG for {limit_s} s"
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def try_fault(folder, fault, mpi, n=3, bad=1):
    """(what is wrong or "", stderr) of one run."""
    script = Path(folder) / "script.py"
    if not script.exists():
        script.write_text(SCRIPT)
    options = ["--deadline", "2"] if fault[0] in ("SIGSTOP", "sleep", "raw") else []
    run = minidl_run(mpi, *options, script, *fault, bad, n=n)
    status, pattern, line = FAULTS[fault]
    pattern = pattern.format(bad=bad, line=line, when=WHEN.get(fault[1], ""))
    if run.returncode != status:
        return f"status {run.returncode}, wanted {status}", run.stderr
    if not re.search(pattern, run.stderr, re.S):
        return f"nothing like {pattern}", run.stderr
    if line and not re.search(rf'script.py(:|", line ){line}\b', run.stderr):
        return f"no line {line}", run.stderr
    return "", run.stderr


def main(runs=100, seed=0):
    random.seed(seed)
    mpis = [mpi for mpi, python in PYTHONS.items() if Path(python).exists()]
    wrong, seconds = collections.Counter(), []

    def one(i, fault, mpi, n, bad):
        start = time.monotonic()
        what, said = try_fault(folder, fault, mpi, n, bad)
        seconds.append(time.monotonic() - start)
        wrong[mpi, bool(what)] += 1
        if what:
            print(f"run {i}: {mpi}, {n} ranks, rank {bad}: {' '.join(fault)}: {what}\n{said}")

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        (Path(folder) / "script.py").write_text(SCRIPT)
        for i in range(runs):
            n = random.choice([2, 3, 4])
            pool.submit(one, i, random.choice(list(FAULTS)), mpis[i % len(mpis)], n,
                        random.randrange(n))
    for mpi in mpis:
        print(f"{mpi}: {wrong[mpi, False]} runs ended as they should, {wrong[mpi, True]} not")
    print(f"longest run {max(seconds):.1f} s")
    return any(bad for _, bad in wrong)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
