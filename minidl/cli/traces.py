"""Files that MPI makes for a run and does not remove when its mpiexec is killed.

    /dev/shm/mpich_shm_1e47_0            MPICH: shared memory
    /tmp/hydra_hwloc_xmlfile_DZTCPC      MPICH: what its processes know of the machine
    /dev/shm/sm_segment.host.0.5118.1    Open MPI: shared memory
    /tmp/ompi.1860/                      Open MPI: the folder of mpiexec, by its process

The launcher asks which of them mpiexec and the processes below it hold, while these live, and
removes what is there when they are gone. A guard that ends its rank does the same for its rank: so
shared memory goes on every host, and when the launcher is killed. Imports nothing of minidl: a
guard runs this file by itself.

Test: tests/cli/test_leftovers.py   Used by: supervisor.py, rank.py
"""

import contextlib
import os
import re
import shutil
from pathlib import Path

FILE = re.compile(r"/dev/shm/(?:mpich_shm_|sm_segment\.|vader_segment\.)[\w.-]+"
                  r"|/\S*/hydra_hwloc_xmlfile_\w+")
FOLDER = re.compile(r"(/\S*/ompi\.(\d+))/")


def of(pid):
    """Returns the paths that a process and all below it hold; an empty set where there is no
    /proc."""
    found, family = set(), below(pid)
    for each in family:
        held = []
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            held.append(Path(f"/proc/{each}/maps").read_text())
            for link in Path(f"/proc/{each}/fd").iterdir():
                held.append(os.readlink(link))
        for text in held:
            found |= set(FILE.findall(text))
            # a daemon of Open MPI's that serves several runs keeps its folder
            found |= {path for path, owner in FOLDER.findall(text) if int(owner) in family}
    return found


def below(pid):
    """Returns the numbers of a process and of all that it has started, as far as they live."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def remove(paths):
    """Remove those that are still there."""
    for path in paths:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)
