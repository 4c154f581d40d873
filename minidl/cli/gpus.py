"""One GPU for each rank of a machine: which of them `minidl run` lets a rank see.

    4 ranks, 2 GPUs       local rank   0  1  2  3        each sees its GPU as cuda:0, the only one,
                          GPU          0  1  0  1        so "cuda" is right in every script

CUDA reads CUDA_VISIBLE_DEVICES when a process first asks for a GPU, so it must be set before: here,
without CuPy, which takes a second to import. GPUs that are dealt out already (the variable is set,
by a user or a batch system) are dealt on; where this process cannot count them, nothing is set.
Started by mpiexec itself, a rank sees all: minidl.cuda.set_device(local_rank(os.environ)).
Test: tests/cli/test_gpus.py
"""

from pathlib import Path

# A rank's number among those of its machine, as Open MPI, MPICH (and Intel MPI), Slurm tell it.
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
LOCAL_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


def local_rank(environ):
    """This rank's number on its machine; None if no launcher told it."""
    return _number(environ, LOCAL_RANK)


def own_gpu(environ, devices="/dev"):
    """What to add to the environment of a rank, so that it sees one GPU: {} or one variable."""
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
