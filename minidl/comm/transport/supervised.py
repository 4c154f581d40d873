"""The messages of a rank to the launcher that supervises it. Plain mpirun supervises nothing.

    minidl run (supervisor.py) <== a line of JSON over TCP == rank (cli/rank.py)

Each line has one of these words, which tells what has happened in the rank:

    born       rank.py has begun; nothing is imported yet    joining    world() begins
    joined     world() has ended; all ranks are in MPI       finished   the script has ended
    exits      the script has called sys.exit(3)             failed     the rank ends, after `why`
    why        an exception, or a Watch's report             step       the number of steps done
    trained    elastic.run has ended                         strangers  connections were refused
    heals      a rank has died; this rank continues

rank.py makes the connection. It writes the file descriptor of the connection and the id of this
process to an environment variable. A process that the rank starts has this variable, too, but must
not use the connection. In such a process `is_supervised` returns False, because its id is
different.

Test: tests/cli/test_supervisor.py   Used by: mpi.py, abort.py, lookout.py, cli/rank.py
"""

import json
import os

LINK = "MINIDL_LINK"  # "7:1234": descriptor 7 of process 1234

# The environment variables with which launchers tell a process its (rank, size). srun sets
# SLURM_STEP_NUM_TASKS. The list does not have SLURM_NTASKS, because a single process inside an
# allocation also has this variable.
LAUNCHERS = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI, Slurm with --mpi=pmi2
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
]


def launched_as():
    """Returns (rank, number of ranks) from the environment variables that the MPI launcher has set.
    Returns (0, 1) if there are no such variables."""
    for rank, size in LAUNCHERS:
        if os.environ.get(size, "").isdigit() and os.environ.get(rank, "").isdigit():
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def is_supervised():
    """Returns True if `minidl run` supervises this process. If this process dies, `minidl run` then
    reports the death."""
    number, _, process = os.environ.get(LINK, "").partition(":")
    return process == str(os.getpid())


def say(what, **more):
    """Sends the JSON object {"say": what, **more} to the launcher, in one line. Returns False if no
    launcher supervises this process, or if the launcher has ended."""
    if not is_supervised():
        return False
    line = json.dumps({"say": what, **more}).encode() + b"\n"
    try:
        # The line is short, so one write sends the whole line.
        os.write(int(os.environ[LINK].partition(":")[0]), line)
    except OSError:
        return False  # the launcher has ended
    return True
