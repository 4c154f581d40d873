"""Allows one writer of a snapshot folder at a time. The error of a second writer names the first
writer.

    runs/lock     "process 4711 on node3 since 2026-11-22 07:40:01", exists during a save

Without a lock, two runs that save into one folder would remove each other's files. `folder.prune`
removes every file that belongs to no index. It would also remove a file that the other run is still
writing.

The lock (flock) belongs to the open file. If the file exists but no process has locked it, the
folder is not locked. If a process is killed, the operating system immediately ends its lock, on
every host. The file is left over, but it does not block other processes.

Source: flock(2). Linux passes the lock to an NFS folder's server, so the lock works between hosts.
Test: tests/snapshot/test_lock.py   Used by: snapshot.py
"""

import contextlib
import fcntl
import os
import socket
import time
import warnings


@contextlib.contextmanager
def only_writer(folder):
    """`with only_writer(folder) as other:` makes the folder if it is missing, and locks it. `other`
    is "" if this process has the lock now, else a sentence that names the other writer."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lock"
    file, other = _open_locked(path)
    if other:
        yield other
        return
    try:
        os.ftruncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()} since "
                       f"{time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
        yield ""
    finally:
        os.unlink(path)  # comes before close(). After close() another process may own the file
        os.close(file)


def _open_locked(path):
    """Opens and locks the file. Returns (the descriptor of the file, ""). If another process holds
    the lock, returns (None, a sentence that names this process)."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 1000).decode(errors="replace") or "another process"
            os.close(file)
            return None, (
                f"wanted to save into {path.parent}, but the folder is locked by {holder}. A "
                "folder belongs to one run: save into another folder, or end the other run. If "
                "both processes are ranks of this run, give all ranks its transport: "
                "save(folder, step, t, ...)")
        except OSError as error:
            warnings.warn(f"{path}: this file system has no locks ({error.strerror}), so a second "
                          "run could save into the folder at the same time. Make sure that no "
                          "other run does", stacklevel=5)
        if _is_at(file, path):
            return file, ""
        # The last holder has removed the file between our open and our lock: try again.
        os.close(file)


def _is_at(file, path):
    """Returns True if the path still leads to this open file."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
