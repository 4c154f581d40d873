"""Starting MPI processes from a test, and ending what hangs."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from minidl.launcher import environment, find_mpiexec

ROOT = pathlib.Path(__file__).parents[2]


def require_mpi():
    """Skip the test, saying why, where there is no MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: pip install mpi4py mpich")
    if find_mpiexec() is None:
        pytest.skip("no mpiexec beside this Python or in PATH: pip install mpich")


def mpiexec(n, *command, timeout, env=None, check=False):
    """Run `python *command` on n ranks; a CompletedProcess with text output.

    A run over `timeout` seconds is ended, all its processes too, and fails with its output.
    """
    require_mpi()
    environ = environment(n) | {
        # Ranks share few cores: one BLAS thread each, else they fight.
        **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **(env or {}),
    }
    process = subprocess.Popen(
        [find_mpiexec(), "-n", str(n), sys.executable, *map(str, command)],
        env=environ,
        cwd=ROOT,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that ending it ends its children
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{n} ranks hung for {timeout} s; their output:\n{out[-3000:]}\n{err[-6000:]}")
    except BaseException:  # ctrl-C, or pytest's own time limit
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if check and process.returncode:
        pytest.fail(f"{n} ranks ended with {process.returncode}:\n{out[-1000:]}\n{err[-9000:]}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)
