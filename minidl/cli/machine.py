"""Describes this machine for the commands: its cores, its mpiexec, the environment of the ranks.

    find_mpiexec()      the path of mpiexec: next to this Python, otherwise on the PATH
    vendor_of(mpiexec)  MPICH, Open MPI, Intel MPI
    environment(n)      the environment of n ranks: how many threads each rank has, and settings of
                        the MPI and BLAS libraries

Test: tests/cli/test_main.py   Used by: launcher.py, doctor.py, benchmarks/
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from minidl.backend import n_cores

# NumPy's BLAS library reads one of these variables. The first word of a name tells which library
# reads it: OpenBLAS, MKL, or any library that uses OpenMP (OMP).
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

# By default Open MPI refuses to run as root (usual in containers), and refuses more ranks than
# cores. It also binds each rank to one core, so that all BLAS threads of a rank share this core.
# These variables change the defaults. mpirun 4.x reads the names with OMPI_, and mpirun 5.x reads
# the names with PRTE_. MPICH has none of these limits and ignores the variables.
OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    # "^ucx" excludes Open MPI's UCX windows, because they print an error if UCX is missing.
    "OMPI_MCA_osc": "^ucx",
}


def find_mpiexec():
    """Returns the path of mpiexec or mpirun, or None. pip puts an mpiexec that fits mpi4py into the
    folder of this Python. So find_mpiexec() looks in this folder first."""
    beside = str(Path(sys.executable).parent)
    for where in (beside, None):
        for name in ("mpiexec", "mpirun"):
            if found := shutil.which(name, path=where):
                return found
    return None


def version_of(mpiexec):
    """Returns the output of `mpiexec --version`, or "" if it cannot be started or does not end."""
    try:
        return subprocess.run([mpiexec, "--version"], capture_output=True, text=True,
                              timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def vendor_of(mpiexec):
    """Returns 'MPICH', 'Open MPI', 'Intel MPI' or 'unknown vendor', from `mpiexec --version`."""
    said = version_of(mpiexec)
    # Intel's launcher also prints HYDRA, so look for Intel first.
    for words, vendor in (("Intel", "Intel MPI"), ("Open MPI", "Open MPI"), ("OpenRTE", "Open MPI"),
                          ("HYDRA", "MPICH")):
        if words in said:
            return vendor
    return "unknown vendor"


def environment(n, threads=None):
    """Returns the environment for n ranks on this machine: this process's environment with some
    variables added. threads: the number of BLAS threads of each rank. If threads is None, the
    number is cores / n. Then variables that the user has set are not changed."""
    env = dict(os.environ)
    share = str(threads or max(1, n_cores() // n))
    for name in THREAD_VARIABLES:
        if threads or name not in env:
            env[name] = share
    for name, value in OPEN_MPI.items():
        env.setdefault(name, value)
    # OpenBLAS's idle threads spin for about 30 ms after a product, and so take cores from the
    # threads of kernels. With this value they sleep after 2**4 ticks. On 2 cores a training step
    # takes a tenth less time.
    env.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # The next forward needs the memory that backward frees. By default glibc returns this memory to
    # the system, and gets it again page by page. A step of a small GPT then has 20,000 page
    # faults, which take 5% of its time. For MALLOC_MMAP_THRESHOLD_ glibc allows at most 32 MiB.
    env.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**30))
    env.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**25))
    if n > n_cores():  # more ranks than cores: a waiting rank must let other ranks use its core
        env.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
    return env
