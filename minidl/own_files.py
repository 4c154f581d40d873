"""Files that a later run reads: whole, and nobody else can have written them.

    write_whole(path, text)      a name of its own   --rename-->   path: the old text, or the new
    is_ours(path)                this user's, root's, or of the owner of the folder MINIDL_CACHE

Used by: cuda/host/compiler.py (libraries), comm/select.py (measured figures), cuda/dispatch.py
Test: tests/cuda/host/test_compiler.py, tests/comm/test_select.py
"""

import os
import stat
import tempfile


def is_ours(file):
    """Returns whether this user, root, or the owner of a folder that the user named has written the
    file, and no other user can."""
    if not hasattr(os, "getuid"):
        return True
    about, folder = file.stat(), file.parent.stat()
    owners = {os.getuid(), 0} | ({folder.st_uid} if os.environ.get("MINIDL_CACHE") else set())
    # with the sticky bit nobody replaces another user's file
    others_may_replace = folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX
    return about.st_uid in owners and not about.st_mode & 0o022 and not others_may_replace


def write_whole(path, text):
    """Write a file, whole or not at all: several processes write it, and read it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, 0o644)  # others may read a cache that is shared
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
