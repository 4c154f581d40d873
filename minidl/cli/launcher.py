"""Starting ranks: find mpiexec, share the cores, let no rank survive another's failure.

    minidl run -n 4 script.py    mpiexec -n 4 python -m minidl.cli.launcher script.py, with the
                                 environment below

Every rank runs the script as `python script.py` would, but it sees one GPU of those of its machine
(gpus.py), what it prints is shown line by line,
and an exception, or sys.exit with a status other than 0, on one rank ends all (abort.guarded):
without that the failed process waits in MPI_Finalize for the others, and they for its messages. A
rank that dies by a signal is noticed by mpiexec itself, which ends the rest.

Test: tests/cli/test_main.py   Tutorial: tutorials/00_hello.py
"""

import importlib.util
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

# One variable per library that NumPy's BLAS may be: OpenMP in general, OpenBLAS, MKL.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# Open MPI refuses root (usual in containers), refuses more ranks than cores, and ties each rank to
# one core, which leaves its BLAS threads a single one. Both generations of names: mpirun of 4.x
# reads OMPI_, that of 5.x PRTE_. MPICH does none of this and ignores these variables.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    # Its UCX windows say on stderr that they failed where there is no UCX; its others then serve.
    "OMPI_MCA_osc": "^ucx",
}

NO_MPIEXEC = ("no mpiexec beside this Python ({python}) or on the PATH. Install an MPI: pip "
              "install 'minidl[mpi]' brings MPICH; on Debian and Ubuntu: sudo apt install mpich. "
              "Without MPI most scripts run with: python {script} --sim {n}")


class LaunchError(Exception):
    """The ranks cannot be started; the message says why and what to do."""


def run(script, arguments, n, threads=None, mpiexec=None, net=None):
    """Run a Python script on n MPI ranks; returns its exit status, 130 after ctrl-C.

    net   a network to imitate, as links_text.parse reads it; `comm.world()` finds it in MINIDL_NET
    """
    if not Path(script).is_file():
        raise LaunchError(f"there is no file {script} in {os.getcwd()}")
    if importlib.util.find_spec("mpi4py") is None:
        raise LaunchError(f"mpi4py is not installed for {sys.executable}. Install it with an MPI: "
                          "pip install 'minidl[mpi]'. Without MPI most scripts run with: "
                          f"python {script} --sim {n}")
    env = environment(n, threads)
    if net is not None:
        from minidl.comm.transport import links_text  # here: every rank runs this file, few need it

        try:
            links_text.parse(net, n)
        except ValueError as error:
            raise LaunchError(f"--net: {error}") from None
        env["MINIDL_NET"] = net
    launcher = shlex.split(mpiexec) if mpiexec else [find_mpiexec()]
    if launcher[0] is None:
        raise LaunchError(NO_MPIEXEC.format(python=sys.executable, script=script, n=n))
    command = [*launcher, "-n", str(n), sys.executable, "-m", "minidl.cli.launcher", script]
    command += arguments
    try:
        child = subprocess.Popen(command, env=env)
    except OSError as error:
        raise LaunchError(f"cannot start {launcher[0]}: {error.strerror}") from error
    return _wait(child)


def find_mpiexec():
    """mpiexec or mpirun: beside this Python first, where pip puts the one that fits; or None."""
    beside = str(Path(sys.executable).parent)
    for where in (beside, None):
        for name in ("mpiexec", "mpirun"):
            if found := shutil.which(name, path=where):
                return found
    return None


def environment(n, threads=None):
    """This process's environment for n ranks on this machine."""
    env = dict(os.environ)
    share = str(threads or max(1, n_cores() // n))
    for name in THREAD_VARIABLES:
        if threads or name not in env:
            env[name] = share
    for name, value in OPEN_MPI.items():
        env.setdefault(name, value)
    # OpenBLAS's idle threads spin for some 30 ms after a product, on cores that threads of kernels
    # need; after 2**4 ticks they sleep instead. On 2 cores a training step gains a tenth.
    env.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # The next forward needs the memory that backward frees. glibc would return it to the system and
    # get it again page by page: 20,000 page faults a step of a small GPT, 5% of its time. 32 MiB is
    # the largest value of the second variable.
    env.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))
    env.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**25))
    if n > n_cores():  # a waiting rank lets the others have the core
        env.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    return env


def n_cores():
    """Cores that this process may use: under taskset or a batch system fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _wait(child):
    """Wait for mpiexec; ctrl-C or SIGTERM ends it, and with it all ranks."""

    def interrupt(*_):
        child.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        status = child.wait()
        # killed by a signal: 128 + its number, as a shell says
        return 128 - status if status < 0 else status
    except KeyboardInterrupt:
        # A terminal sends ctrl-C to mpiexec, too, which then ends its ranks; `kill -INT` reaches
        # this process alone.
        for patience, then in ((1, child.terminate), (3, child.kill)):  # seconds
            try:
                child.wait(patience)
                break
            except subprocess.TimeoutExpired:
                then()
        child.wait()
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":  # one rank
    # Under mpiexec stdout is a pipe: what a rank printed before it hung or was aborted would stay
    # in its buffer. PYTHONUNBUFFERED would write each argument of a print by itself, and the lines
    # of several ranks would mix.
    sys.stdout.reconfigure(line_buffering=True, write_through=False)
    from minidl.cli import gpus
    from minidl.comm.transport import abort

    os.environ.update(gpus.own_gpu(os.environ))
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
    with abort.guarded():
        runpy.run_path(sys.argv[0], run_name="__main__")
