"""Gives each rank of a machine one GPU: `minidl run` lets the rank see only this one.

    4 ranks, 2 GPUs       local rank   0  1  2  3        each rank sees its own GPU as cuda:0, so
                          GPU          0  1  0  1        "cuda" is right in every script

CUDA reads CUDA_VISIBLE_DEVICES when a process first uses a GPU. So rank.py sets it before that, and
without CuPy, because importing CuPy takes a second. If a user or a batch system has set the
variable, only its GPUs are given to the ranks. If this process cannot count the GPUs, it sets
nothing.
A rank that mpiexec starts without `minidl run` sees all GPUs. Then the script must call
minidl.cuda.set_device(local_rank(os.environ)).
Test: tests/cli/test_gpus.py
"""

from pathlib import Path

# A rank's number on its machine: the variables of Open MPI, of MPICH and Intel MPI, of Slurm.
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def local_rank(environ):
    """Returns this rank's number on its machine, or None if the launcher has not set it."""
    return _number(environ, LOCAL_RANK)


def own_gpu(environ, devices="/dev"):
    """Returns what to add to a rank's environment so that it sees one GPU: {} or one variable."""
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
