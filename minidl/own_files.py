"""Files that a later run reads. They must be complete, and no other user may have written them.

    write_whole(path, text)      writes a temporary file, then renames it to `path`. A reader sees
                                 the whole old text or the whole new text.
    is_ours(path)                True if only this user, root, or the owner of the folder
                                 MINIDL_CACHE can have written the file

Used by: cuda/host/compiler.py (libraries), comm/select.py (measured times), cuda/dispatch.py
Test: tests/cuda/host/test_compiler.py, tests/comm/test_select.py
"""

import os
import stat
import tempfile


def is_ours(file):
    """Returns True if no other user can have written the file. The owner of the file must be this
    user or root. If MINIDL_CACHE is set, the owner of the file's folder is also allowed. No other
    user may have the right to write or to replace the file. On Windows always returns True."""
    if not hasattr(os, "getuid"):
        return True
    about, folder = file.stat(), file.parent.stat()
    owners = {os.getuid(), 0} | ({folder.st_uid} if os.environ.get("MINIDL_CACHE") else set())
    # In a folder with the sticky bit no user can replace a file of another user.
    others_may_replace = folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX
    return about.st_uid in owners and not about.st_mode & 0o022 and not others_may_replace


def write_whole(path, text):
    """Writes a text file. A reader never sees only a part of the text, even if several processes
    write and read at the same time."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        os.chmod(temporary, 0o644)  # other users may read a shared cache
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
