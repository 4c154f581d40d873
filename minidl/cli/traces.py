"""Removes files that MPI makes for a run and leaves behind if mpiexec is killed.

    /dev/shm/mpich_shm_1e47_0            MPICH: shared memory
    /tmp/hydra_hwloc_xmlfile_DZTCPC      MPICH: a description of the machine
    /dev/shm/sm_segment.host.0.5118.1    Open MPI: shared memory
    /tmp/ompi.1860/                      Open MPI: the folder of mpiexec, with its process number

While mpiexec and its child processes run, the launcher notes which of these files they use. After
these processes have ended, the launcher removes the files that still exist. A guard that ends its
rank also removes the files of this rank. So shared memory is removed on every host, and also if the
launcher is killed. This file imports nothing from minidl, because a guard runs this file without
the rest of minidl.

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
    """Returns a set of paths: MPI's files and folders that a process and its descendants use. The
    set is empty on a system without /proc."""
    found, family = set(), below(pid)
    for each in family:
        held = []
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            held.append(Path(f"/proc/{each}/maps").read_text())
            for link in Path(f"/proc/{each}/fd").iterdir():
                held.append(os.readlink(link))
        for text in held:
            found |= set(FILE.findall(text))
            # Only folders of these processes. An Open MPI daemon may serve several runs, so its
            # folder must not be removed.
            found |= {path for path, owner in FOLDER.findall(text) if int(owner) in family}
    return found


def below(pid):
    """Returns the process numbers of a process and of its descendants that still run."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def remove(paths):
    """Removes the paths that still exist."""
    for path in paths:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(path)
