"""One writer of a snapshot folder at a time; the second is told who the first is.

    runs/lock     "process 4711 on node3 since 2026-11-22 07:40:01", there while somebody saves

Without it two runs that save into one folder remove each other's files: `snapshot.prune` takes what
belongs to no index, and so the file that the other run is writing.

The kernel holds the lock (flock, on an open file), not the file's being there. So a process that is
killed lets go of it at that moment, on whichever host, and what it leaves behind blocks nobody.

Source: flock(2); Linux passes it to the server of an NFS folder, so hosts see each other's.
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
    """`with only_writer(folder) as other:`: a sentence about the other writer; "" if this one has
    the folder now. Makes the folder."""
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
        os.unlink(path)  # before the lock is gone: afterwards it may be another's
        os.close(file)


def _open_locked(path):
    """(descriptor, "") of the locked file, or (None, a sentence)."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, 1000).decode(errors="replace") or "another process"
            os.close(file)
            return None, (
                f"wanted to save into {path.parent}, into which {holder} is saving. A folder "
                "belongs to one run: save elsewhere, or end the other. If both are ranks of this "
                "run, give all of them its transport: save(folder, step, t, ...)")
        except OSError as error:
            warnings.warn(f"{path}: this file system has no locks ({error.strerror}): nothing "
                          "keeps a second run from saving into the folder", stacklevel=5)
        if _is_at(file, path):
            return file, ""
        os.close(file)  # its last holder removed it between our open and our lock


def _is_at(file, path):
    """Whether the path still leads to this open file."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
