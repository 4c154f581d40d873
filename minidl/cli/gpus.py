"""Gives each rank of a machine one GPU: `minidl run` lets the rank see only this GPU.

    4 ranks, 2 GPUs       local rank   0  1  2  3        each rank sees its own GPU as cuda:0, so
                          GPU          0  1  0  1        "cuda" is right in every script

CUDA reads CUDA_VISIBLE_DEVICES when a process first uses a GPU. So rank.py sets this variable
before the first use. It does not import CuPy for this, because the import takes a second. If a user
or a batch system has set the variable, only the GPUs in it are given to the ranks. If rank.py
cannot count the GPUs, it does not set the variable.
A rank that mpiexec starts without `minidl run` sees all GPUs. Then the script must call
minidl.cuda.set_device(local_rank(os.environ)).
Test: tests/cli/test_gpus.py
"""

from pathlib import Path

# The variables that hold a rank's number on its machine. The first is set by Open MPI, the second
# by MPICH and Intel MPI, and the third by Slurm.
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def local_rank(environ):
    """Returns this rank's number on its machine, or None if the launcher has not set this number.
    """
    return _number(environ, LOCAL_RANK)


def own_gpu(environ, devices="/dev"):
    """Returns the variables to add to a rank's environment, so that the rank sees one GPU. The
    result is a dict with one variable, or {} if no variable has to be added."""
    rank, n_ranks = local_rank(environ), _number(environ, LOCAL_SIZE)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        gpus = [str(i) for i in range(len(list(Path(devices).glob("nvidia[0-9]*"))))]
    else:
        gpus = [name for name in visible.split(",") if name]
    if rank is None or n_ranks == 1 or len(gpus) < 2:
        return {}
    return {"CUDA_VISIBLE_DEVICES": gpus[rank % len(gpus)]}


def _number(environ, names):
    return next((int(environ[name]) for name in names if environ.get(name, "").isdigit()), None)
