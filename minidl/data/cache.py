"""What a pipeline has made, kept in a folder that all ranks read: made once, read in every epoch.

    pipeline.json       {"n": how many elements}        another pipeline's folder is refused
    host-pid-x.data     record | record | ...           each process appends to a file of its own,
    host-pid-x.index    4 integers for each record:     and reads what all of them have written by
                        number, begin, length, CRC-32   the beginning of an epoch

The index entry is written after its record, so a process that is killed leaves whole records and at
most a piece behind them, which nobody reads. A record is a pickle: the folder must be one that only
you can write, for reading a pickle can run code.     Test: tests/data/test_cache.py
"""

import json
import os
import pickle
import platform
import secrets
import threading
import weakref
import zlib
from pathlib import Path

import numpy as np

ENTRY = 32  # bytes of the four integers


class Folder:
    """A mapping from numbers to values. `begin(n)` before each epoch."""

    def __init__(self, path):
        self.path, self.lock = Path(path), threading.Lock()
        self.where, self.read_so_far = {}, {}  # number -> (file, begin, length, CRC); index bytes
        self.files, self.name, self.end = {}, None, 0  # open ones, by name; this process's
        weakref.finalize(self, _close, self.files)

    def begin(self, n):
        """Read what all processes have written since."""
        self.path.mkdir(parents=True, exist_ok=True)
        about = self.path / "pipeline.json"
        if not about.exists():
            mine = self.path / f".{_process()}-{secrets.token_hex(4)}.json"
            mine.write_text(json.dumps({"n": n}))
            os.replace(mine, about)
        elif (other := json.loads(about.read_text())["n"]) != n:
            raise ValueError(f"cache {self.path} is of a pipeline of {other} elements; this one "
                             f"has {n} there. Take another folder, or remove it")
        for index in sorted(self.path.glob("*.index")):
            name, seen = index.stem, self.read_so_far.get(index.stem, 0)
            with open(index, "rb") as f:
                f.seek(seen)
                new = f.read()
            new = new[:len(new) - len(new) % ENTRY]
            self.read_so_far[name] = seen + len(new)
            for number, *place in np.frombuffer(new, "<i8").reshape(-1, 4).tolist():
                self.where.setdefault(number, (name, *place))

    def __contains__(self, number):
        return number in self.where

    def __getitem__(self, number):
        name, begin, length, crc = self.where[number]
        record = os.pread(self._file(f"{name}.data", os.O_RDONLY), length, begin)
        if zlib.crc32(record) != crc:
            raise ValueError(f"cache {self.path}: element {number} in {name}.data is damaged. "
                             "Remove the folder; it will be made anew")
        return pickle.loads(record)

    def __setitem__(self, number, value):
        record = pickle.dumps(value, protocol=5)
        with self.lock:
            if number in self.where:
                return
            if self.name is None or not self.name.startswith(_process()):  # also after a fork
                self.name, self.end = f"{_process()}-{secrets.token_hex(4)}", 0
            entry = np.array([number, self.end, len(record), zlib.crc32(record)], "<i8")
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


def _process():
    return f"{platform.node()}-{os.getpid()}"


def _close(files):
    for fd in files.values():
        os.close(fd)
