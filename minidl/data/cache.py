"""Keeps a pipeline's elements in a folder. An element is computed once. All ranks read it later.

    pipeline.json       {"n": how many elements}        a pipeline with another n raises an error
    host-pid-x.data     record | record | ...           each process appends to its own files. At
    host-pid-x.index    4 integers for each record:     the start of an epoch it reads the index
                        number, begin, length, CRC-32   files of all processes

An index entry is written after its record. So if a process is killed, all indexed records are
complete. After these records there may be a part of a record, but this part has no index entry. A
damaged element is computed again. A record is a pickle, and reading a pickle can run code. So files
that another user can write are not read.
Test: tests/data/test_cache.py
"""

import json
import os
import pickle
import platform
import secrets
import threading
import warnings
import weakref
import zlib
from pathlib import Path

import numpy as np

ENTRY = 32  # bytes of an entry in the index, which has four integers


class Folder:
    """A mapping from element numbers to values, in the folder `path`. Call `begin(n)` before each
    epoch. folder[number] raises KeyError if the value of this element is missing or damaged."""

    def __init__(self, path):
        self.path, self.lock = Path(path), threading.Lock()
        # `where`: {number of an element: (file, begin, length, CRC)}. `read_so_far`: {file: how
        # many bytes of the file's index are read}.
        self.where, self.read_so_far = {}, {}
        # `files`: the open files. `name` and `end`: the name and the length of this process's data
        # file.
        self.files, self.name, self.end = {}, None, 0
        self.full = False  # True after a failed write. Then no more elements are stored
        weakref.finalize(self, _close, self.files)

    def begin(self, n):
        """Reads the new index entries of all processes. n: how many elements the pipeline has.
        Raises ValueError if the folder is for another number of elements, or is damaged."""
        self.path.mkdir(parents=True, exist_ok=True)
        about = self.path / "pipeline.json"
        if not about.exists():
            mine = self.path / f".{_process()}-{secrets.token_hex(4)}.json"
            mine.write_text(json.dumps({"n": n}))
            os.replace(mine, about)
        elif (other := self._described(about)) != n:
            raise ValueError(f"cache {self.path}: the folder belongs to a pipeline of {other} "
                             f"elements, but this pipeline has {n}. Take another folder, or "
                             "remove this folder")
        for index in sorted(self.path.glob("*.index")):
            data = index.with_suffix(".data")
            if not (_is_ours(index) and _is_ours(data)):
                continue
            name, seen, size = index.stem, self.read_so_far.get(index.stem, 0), data.stat().st_size
            with open(index, "rb") as f:
                f.seek(seen)
                new = f.read()
            new = new[:len(new) - len(new) % ENTRY]
            self.read_so_far[name] = seen + len(new)
            for number, begin, length, crc in np.frombuffer(new, "<i8").reshape(-1, 4).tolist():
                if begin >= 0 and 0 <= length <= size - begin:  # otherwise the entry is damaged
                    self.where.setdefault(number, (name, begin, length, crc))

    def _described(self, about):
        """Returns n, the number of elements of the folder's pipeline. about: the path of
        pipeline.json, which holds n. Raises ValueError if this file is damaged."""
        try:
            return json.loads(about.read_text("utf-8"))["n"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"cache {self.path}: {about.name} is damaged ({error}). Remove the "
                             "folder: the next run makes it again") from None

    def __getitem__(self, number):
        name, begin, length, crc = self.where[number]
        try:
            record = os.pread(self._file(f"{name}.data", os.O_RDONLY), length, begin)
            if _checksum(number, record) == crc:
                return pickle.loads(record)
        except Exception:  # the file was deleted, or a class in the pickle has changed
            pass
        del self.where[number]
        raise KeyError(number)

    def __setitem__(self, number, value):
        if self.full:
            return
        record = pickle.dumps(value, protocol=5)
        try:
            self._write(number, record)
        except OSError as error:
            self.full = True
            warnings.warn(f"cache {self.path} cannot be written ({error.strerror}). Elements that "
                          "are not in the cache are computed again in every epoch", RuntimeWarning,
                          stacklevel=2)

    def _write(self, number, record):
        with self.lock:
            if number in self.where:
                return
            # Every process, even a forked one, writes its own files.
            if self.name is None or not self.name.startswith(_process()):
                self.name, self.end = f"{_process()}-{secrets.token_hex(4)}", 0
            entry = np.array([number, self.end, len(record), _checksum(number, record)], "<i8")
            for kind, content in (("data", record), ("index", entry.tobytes())):
                with open(self._file(f"{self.name}.{kind}", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
                          "ab", closefd=False) as f:
                    f.write(content)
            self.where[number] = (self.name, *entry[1:].tolist())
            self.end += len(record)

    def _file(self, name, flags):
        key = name, flags
        if key not in self.files:
            fd = os.open(self.path / name, flags, 0o600)
            if self.files.setdefault(key, fd) != fd:  # another thread was first
                os.close(fd)
        return self.files[key]


def _checksum(number, record):
    """Returns a CRC-32 over two things: the record, and the number of its element. So the check
    also fails if the record belongs to another element."""
    return zlib.crc32(record, number % (1 << 32))


def _is_ours(path):
    """Returns True if the file belongs to this user or root, and no other user can write it."""
    try:
        about = path.stat()
    except OSError:
        return False
    return not hasattr(os, "getuid") or (
        about.st_uid in (os.getuid(), 0) and not about.st_mode & 0o022)


def _process():
    """Returns the name of this process: the host's name and the process id, as "host-pid"."""
    return f"{platform.node()}-{os.getpid()}"


def _close(files):
    for fd in files.values():
        os.close(fd)
