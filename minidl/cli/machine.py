"""The machine as the commands see it: its cores, its mpiexec, the environment that ranks get.

    find_mpiexec()      beside this Python, else on the PATH
    vendor_of(mpiexec)  MPICH, Open MPI, Intel MPI
    environment(n)      threads for each rank, and what the MPIs and BLAS libraries are told

Test: tests/cli/test_main.py   Used by: launcher.py, doctor.py, benchmarks/
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from minidl.backend import n_cores

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


def find_mpiexec():
    """mpiexec or mpirun: beside this Python first, where pip puts the one that fits; or None."""
    beside = str(Path(sys.executable).parent)
    for where in (beside, None):
        for name in ("mpiexec", "mpirun"):
            if found := shutil.which(name, path=where):
                return found
    return None


def version_of(mpiexec):
    """What `mpiexec --version` prints; "" where it cannot be started or does not answer."""
    try:
        return subprocess.run([mpiexec, "--version"], capture_output=True, text=True,
                              timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def vendor_of(mpiexec):
    """'MPICH', 'Open MPI', 'Intel MPI' or 'unknown vendor', after `mpiexec --version`."""
    said = version_of(mpiexec)
    # Intel's launcher says HYDRA, too: look for Intel first
    for words, vendor in (("Intel", "Intel MPI"), ("Open MPI", "Open MPI"), ("OpenRTE", "Open MPI"),
                          ("HYDRA", "MPICH")):
        if words in said:
            return vendor
    return "unknown vendor"


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
