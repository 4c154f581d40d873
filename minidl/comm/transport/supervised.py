"""What a rank tells the launcher that supervises it; nothing where none does (plain mpirun).

    minidl run (supervisor.py) <== a line of JSON over TCP == rank (cli/rank.py)

    born       by rank.py, before anything is imported         joining    world() begins
    joined     world() is done: all ranks are in MPI            finished   the script has ended
    exits      sys.exit(3), with the line                       failed     it said why, and leaves
    why        an exception, or the watch's verdict             step       it has done so many steps
    trained    elastic.run has ended

The connection is made by rank.py, which leaves its number in the environment with the process it
belongs to: a process that the rank starts has the variable too, and must not write.

Test: tests/cli/test_supervisor.py   Used by: mpi.py, abort.py, lookout.py, cli/rank.py
"""

import json
import os

LINK = "MINIDL_LINK"  # "7:1234": descriptor 7 of process 1234

# What launchers tell each process about its world: (rank, size). Not SLURM_NTASKS: a lone process
# inside of an allocation has it, too; that of a step is srun's own.
LAUNCHERS = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, Slurm with --mpi=pmi2
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
]


def launched_as():
    """(rank, size) as the MPI launcher told this process; (0, 1) without a known launcher."""
    for rank, size in LAUNCHERS:
        if os.environ.get(size, "").isdigit() and os.environ.get(rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def is_supervised():
    """Whether a launcher of ours watches this process, and names it if it dies."""
    number, _, process = os.environ.get(LINK, "").partition(":")
    return process == str(os.getpid())


def say(what, **more):
    """Tell the launcher; whether there is one."""
    if not is_supervised():
        return False
    line = json.dumps({"say": what, **more}).encode() + b"\n"
    try:
        os.write(int(os.environ[LINK].partition(":")[0]), line)  # short: written in one piece
    except OSError:
        return False  # the launcher is gone
    return True
