"""Whatever is killed, at any moment: no process, no shared memory and no folder stays."""

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from minidl.cli import traces
from tests.cli.faults import ROOT
from tests.conftest import EVERY, each_once, some
from tests.mpi.launch import PYTHONS, require_mpi

SCRIPT = """\
import numpy as np
from minidl import comm
from minidl.comm import ring
t = comm.world()
if t.rank == 0:
    print("up", flush=True)
while True:
    ring.all_reduce(t, np.ones(1000))
"""

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="no /proc: nobody can say what a run holds")]


def alive(pids):
    """Those that run and are not a zombie that waits for its parent."""
    def runs(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
    return [pid for pid in pids if runs(pid)]


def killed(tmp_path, mpi, whom, number, after_s=None):
    """(status, stderr) of a run, one process of which was killed: after so many seconds, or when
    its ranks are up. Fails if anything that it had stays."""
    require_mpi(mpi)
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen(
            [PYTHONS[mpi], "-m", "minidl", "run", "-n", "3", tmp_path / "script.py"], cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as run:
        processes, held, start = {run.pid}, set(), time.monotonic()

        def look():
            processes.update(traces.below(run.pid))
            held.update(traces.of(run.pid))

        try:
            if after_s is None:
                assert run.stdout.readline() == "up\n"
                time.sleep(0.2)
            while after_s is not None and time.monotonic() - start < after_s:
                look()
            look()
            child, = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()[:1] or [0]
            if whom == "launcher":
                run.send_signal(number)
            elif whom == "all":  # a terminal's ctrl-C
                os.killpg(run.pid, number)
            else:
                os.kill(int(child), number)
            _, err = run.communicate(timeout=60)
        except BaseException:
            os.killpg(run.pid, signal.SIGKILL)
            raise
    until = time.monotonic() + 20
    while (alive(processes) or any(map(os.path.exists, held))) and time.monotonic() < until:
        time.sleep(0.05)
    assert not alive(processes), f"processes are left\n{err}"
    assert [path for path in held if os.path.exists(path)] == [], err
    assert after_s is not None or held, "a run holds something, or this test sees nothing"
    return run.returncode, err


@pytest.mark.parametrize("mpi", some(PYTHONS))
def test_mpiexec_that_is_killed_is_named_and_leaves_nothing(mpi, tmp_path):
    """Red before: no word, and shared memory and folders stayed."""
    status, err = killed(tmp_path, mpi, "mpiexec", signal.SIGKILL)
    assert status == 137
    assert "minidl run: mpiexec (process " in err
    assert "was killed by SIGKILL: this ends all ranks" in err


@pytest.mark.parametrize("mpi, number, whom", some([
    ("mpi", signal.SIGINT, "all"), ("openmpi", signal.SIGTERM, "launcher"),
    ("openmpi", signal.SIGINT, "all"), ("mpi", signal.SIGTERM, "launcher"),
    ("mpi", signal.SIGKILL, "launcher"), ("openmpi", signal.SIGKILL, "launcher")]))
def test_a_run_that_is_ended_leaves_nothing(mpi, number, whom, tmp_path):
    """Red before: MPICH's file in /tmp stayed."""
    status, err = killed(tmp_path, mpi, whom, number)
    assert status in (128 + number, -number)
    assert number == signal.SIGKILL or f"ended by {signal.Signals(number).name}" in err


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mpi, number", each_once(PYTHONS, [signal.SIGINT, signal.SIGKILL]))
def test_an_end_at_any_moment_of_the_start_leaves_nothing(mpi, number, tmp_path):
    """By ctrl-C, or by kill -9 of the launcher, which can do nothing more."""
    seed = int(os.environ.get("MINIDL_SEED", time.time_ns() % 10**6))
    print(f"MINIDL_SEED={seed}")
    chosen = random.Random(seed)
    for _ in range(10 if EVERY else 1):
        whom = "all" if number == signal.SIGINT else "launcher"
        killed(tmp_path, mpi, whom, number, after_s=chosen.uniform(0.3, 1.6))
