"""Saves and loads tensors in dicts and lists, as one safetensors file.

    minidl.save({"model": net.state_dict(), "epoch": 3}, "checkpoint.pt")
    checkpoint = minidl.load("checkpoint.pt")        tensors on the CPU, in memory of their own

A tensor's name in the file is made of its keys: "model.0.weight". The dicts, lists, numbers and
text around the tensors are JSON in the file's metadata. Nothing is pickled, so loading a file never
runs code from the file. Use minidl.snapshot.save to resume a run with the same bits, on several
ranks and after a crash.

Source: github.com/huggingface/safetensors, "Format".
Test: tests/snapshot/test_one_file.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.precision import bf16
from minidl.snapshot import durable, header
from minidl.tensor import Tensor

if TYPE_CHECKING:
    from os import PathLike
    from typing import Any, BinaryIO

    from minidl.hints import Device

STRUCTURE = "minidl"  # the name of the JSON text in the metadata
PLAIN = (bool, int, float, str, type(None))


def save(obj: Any, f: str | PathLike[str] | BinaryIO) -> None:
    """Writes `obj` to a file. obj: a Tensor, a number, text or None, or dicts, lists and tuples of
    such values. f: a path or an open binary file. Raises TypeError if obj contains any other value.
    The message names the position of this value in obj."""
    arrays = {}
    structure = json.dumps(_told(obj, "", arrays))
    pieces = _pieces(arrays, structure)
    if hasattr(f, "write"):
        for piece in pieces:
            f.write(piece)
    else:
        durable.write(Path(f), pieces)


def load(f: str | PathLike[str] | BinaryIO, map_location: Device | None = None, *,
         weights_only: bool = True) -> Any:
    """Returns the object that `save` wrote to f. If another program wrote the safetensors file,
    returns {name: Tensor}. Raises ValueError if the file is damaged or has another format, such as
    a pickle of torch.save.

    map_location: the device of the tensors. The default is the CPU.
    weights_only: has no effect, because loading never runs code."""
    data = f.read() if hasattr(f, "read") else np.fromfile(os.fspath(f), np.uint8)
    try:
        entries, metadata = header.of_bytes(data)
        tensors = {name: _tensor(data, name, entry, map_location)
                   for name, entry in entries.items()}
        if STRUCTURE not in metadata:
            return tensors
        return _built(json.loads(metadata[STRUCTURE]), tensors)
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"minidl.load: {getattr(f, 'name', f)}: {error}. Want a file that "
                         "minidl.save wrote, or a safetensors file. In PyTorch write such a file "
                         "with safetensors.torch.save_file, not with torch.save") from None


def _told(value, place, arrays):
    """Returns the JSON form of a value. Adds the arrays in the value to `arrays`, {name: array}.
    place: the keys that lead to the value, joined by "."."""
    if isinstance(value, Tensor):
        name = place or "tensor"
        while name in arrays or name == "__metadata__":
            name += "_"
        arrays[name] = value.array
        return {"tensor": name}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        value = value.item()
    if type(value) in PLAIN:
        return value
    if isinstance(value, dict):
        pairs = []
        for key, part in value.items():
            if type(key) not in PLAIN:
                raise TypeError(f"minidl.save: a key of {place or 'the dict'} is a "
                                f"{type(key).__name__}; keys are text, numbers or None")
            pairs.append([key, _told(part, f"{place}.{key}" if place else str(key), arrays)])
        return {"dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_told(part, f"{place}.{i}" if place else str(i), arrays)
                       for i, part in enumerate(value)]}
    raise TypeError(f"minidl.save: {place or 'the object'} is of type {type(value).__name__}; a "
                    "file holds tensors, numbers and text, in dicts, lists and tuples. For a model "
                    "or an optimizer, save its state_dict()")


def _built(told, tensors):
    """Returns the value of a JSON form that _told made."""
    if type(told) in PLAIN:
        return told
    if not isinstance(told, dict) or len(told) != 1:
        raise ValueError(f"{str(told)[:40]} is not a value in the form that minidl.save writes")
    (kind, parts), = told.items()
    if kind == "tensor":
        return tensors[parts]
    if kind == "dict":
        return {key: _built(part, tensors) for key, part in parts}
    if kind not in ("list", "tuple"):
        raise ValueError(f"wanted a value of the kind tensor, dict, list or tuple; got the kind "
                         f"{kind[:40]!r}")
    found = [_built(part, tensors) for part in parts]
    return found if kind == "list" else tuple(found)


def _pieces(arrays, structure):
    """Yields the bytes of the file: the header, then one tensor after another."""
    told, at = {"__metadata__": {STRUCTURE: structure}}, 0
    for name, array in arrays.items():
        told[name] = {"dtype": header.CODES[array.dtype.name], "shape": list(array.shape),
                      "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays.values():
        host = np.ascontiguousarray(backend.to_device(array, "cpu"))
        yield memoryview(host.reshape(-1).view(np.uint8))


def _tensor(data, name, entry, device):
    """Returns the Tensor of an entry, in memory of its own."""
    dtypes = {code: dtype for dtype, code in header.CODES.items()}
    if entry.dtype not in dtypes:
        raise ValueError(f"{name[:80]} has the dtype {entry.dtype}; minidl has only "
                         f"{', '.join(dtypes)}")
    kind = dtypes[entry.dtype]
    dtype = bf16.dtype() if kind == "bfloat16" else np.dtype(kind)
    n = int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize
    array = np.frombuffer(data, np.uint8, n, entry.first).copy().view(dtype).reshape(entry.shape)
    return Tensor(array if device is None else backend.to_device(array, device))
