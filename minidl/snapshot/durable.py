"""Writes a file so that after a crash it is complete, or does not exist.

The plain form, with the order of its steps: minidl/plain/elastic.py, `write`. This file adds four
things. A file may be larger than the memory, because it is written in pieces. Its name may depend
on its content. Each file has a checksum. An index contains its own checksum. The two calls of fsync
protect against a power failure. Without the first call, the name may be on the disk, but not the
bytes. Without the second call, the name of a later file may be on the disk, but not the name of
this file.

Source: Pillai et al. 2014, "All File Systems Are Not Created Equal" (OSDI). It shows which writes a
file system may reorder.
Test: tests/snapshot/test_snapshot_crashes.py   Used by: snapshot.py
"""

import hashlib
import json
import os

HOLDS = "a snapshot holds arrays, numbers and text"


def write(path, pieces, named=None):
    """Writes the pieces (bytes objects) one after another into the file `path`. When write()
    returns, the content and the file's name are on the disk. Returns (the name, the number of
    bytes, the sha256 of the content).

    named: None, or a function that returns the file's name for a sha256, if the name depends on the
    content."""
    temporary, n_bytes, digest = f"{path}.tmp", 0, hashlib.sha256()
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            n_bytes += len(rest)
            digest.update(rest)
            while rest:
                rest = rest[os.write(file, rest):]
            piece = rest = None  # frees the piece, which may be large, before the next one is made
        os.fsync(file)
    finally:  # the file is closed even if the disk is full
        os.close(file)
    sha256 = digest.hexdigest()
    path = path if named is None else path.with_name(named(sha256))
    os.replace(temporary, path)
    sync(path.parent)
    return path.name, n_bytes, sha256


def sync(folder):
    """Waits until the names in a folder are on the disk."""
    entry = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(entry)
    finally:
        os.close(entry)


def remove(path):
    os.unlink(path)


def plain(values):
    """Returns `values` as they are after JSON has written and read them. For example, a tuple
    becomes a list. values: numbers, text, lists and dicts."""
    return json.loads(json.dumps(values, default=_number))


def refusal(values):
    """Returns a sentence that tells why JSON cannot keep these values unchanged, or ""."""
    try:
        _text_as_keys(values)
        json.dumps(values, default=_number)
    except (TypeError, ValueError, RecursionError) as error:
        text = str(error)
        return text if text.startswith(HOLDS) else f"{HOLDS}; {text}"
    return ""


def _text_as_keys(values):
    if isinstance(values, dict):
        for key in values:
            if not isinstance(key, str):  # JSON would turn the key 3 into "3"
                raise TypeError(f"{HOLDS}, and its dicts have text as keys; got the key "
                                f"{key!r:.40}")
    if isinstance(values, (dict, list, tuple)):
        for value in values.values() if isinstance(values, dict) else values:
            _text_as_keys(value)


def sealed(body):
    """Returns a JSON text as bytes. The text holds `body` and the checksum of `body`."""
    text = json.dumps(body, sort_keys=True, default=_number)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"sha256": "{digest}", "body": {text}}}\n'.encode()


def unsealed(data):
    """data: the bytes that sealed(body) returned. Returns this body. If the bytes have changed,
    raises ValueError with the reason."""
    try:
        seal = json.loads(data)
        digest = hashlib.sha256(json.dumps(seal["body"], sort_keys=True).encode()).hexdigest()
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError("the file is not an index, or it is only a part of an index: "
                         f"{error}") from None
    if digest != seal.get("sha256"):
        raise ValueError(f"wanted sha256 {str(seal.get('sha256'))[:64]}, got "
                         f"{digest}: the file was altered")
    return seal["body"]


def damage(path, n_bytes, sha256):
    """Returns a sentence if the file is missing or has changed since it was written, else ""."""
    if not path.exists():
        return f"{path} is missing; wanted {n_bytes:,} bytes"
    if path.stat().st_size != n_bytes:
        return f"{path} has another size: wanted {n_bytes:,} bytes; got {path.stat().st_size:,}"
    with open(path, "rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if got == sha256 else f"{path} was altered: wanted sha256 {sha256}, got {got}"


def _number(x):
    """Returns a NumPy number as a Python number. Raises TypeError for other values."""
    if hasattr(x, "item") and not getattr(x, "shape", ()):  # x is a NumPy number
        x = x.item()
        if isinstance(x, (bool, int, float)):
            return x
    raise TypeError(f"{HOLDS}; got {type(x).__name__}: {x!r:.80}")
