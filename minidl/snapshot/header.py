"""Reads the header of a safetensors file, and refuses a file that the format does not allow.

    8 bytes     n, the length of the header
    n bytes     {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                 "b": {"dtype": "F16", "shape": [4],    "data_offsets": [24, 32]}}
    the rest    | a: bytes 0 to 24 | b: bytes 24 to 32 |      every byte belongs to one tensor

A file may come from anybody. So each number is checked before it is used. No name may come twice,
and no tensor may overlap another tensor. Every byte must belong to a tensor. The number of bytes of
a tensor must fit its shape and dtype. This reader refuses every file that the safetensors library
refuses.

Source: github.com/huggingface/safetensors, "Format".
Test: tests/snapshot/test_header.py   Used by: hugging_face.py, snapshot.py
"""

import json
from typing import NamedTuple

BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8,
        "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16,
        "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
        "U64": 64}
CODES = {"bool": "BOOL", "bfloat16": "BF16",  # {a dtype that a snapshot holds: its code}
         **{f"{kind}int{n}": f"{kind or 'i'}{n}".upper() for kind in ("", "u")
            for n in (8, 16, 32, 64)},
         **{f"float{n}": f"F{n}" for n in (16, 32, 64)}}
MOST_BYTES = 100_000_000  # the largest size of a header, as in the safetensors library
MOST = 2**64 - 1  # the largest number in a header: safetensors counts in 64 bits


class Entry(NamedTuple):
    """A tensor in a file. first: the position of the tensor's first byte, counted from the start of
    the file."""

    first: int
    dtype: str
    shape: tuple


def read(path):
    """Returns {name: Entry} of all tensors in the file, in the order of their bytes. Raises
    ValueError with a message of one sentence if the file is cut off or its header is wrong."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            n = int.from_bytes(file.read(8), "little")
            if size < 8 or n > min(size - 8, MOST_BYTES):
                raise ValueError(f"got a header of {n} bytes; want at most {MOST_BYTES} bytes, and "
                                 f"not more than the file's {size} bytes")
            text = file.read(n)
        return _entries(_parsed(text), 8 + n, size)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} is not a complete safetensors file ({error}). Copy or download "
                         "the file again") from None


def of_bytes(data):
    """Reads the header of a file whose bytes are `data`. Returns ({name: Entry}, the metadata
    {name: text}). Raises ValueError with a message of one sentence if the file is cut off or its
    header is wrong."""
    try:
        n = int.from_bytes(bytes(data[:8]), "little")
        if len(data) < 8 or n > min(len(data) - 8, MOST_BYTES):
            raise ValueError(f"got a header of {n} bytes; want at most {MOST_BYTES} bytes, and not "
                             f"more than the file's {len(data)} bytes")
        told = _parsed(bytes(data[8:8 + n]))
        metadata = told.get("__metadata__") or {}
        return _entries(told, 8 + n, len(data)), metadata
    except ValueError as error:
        raise ValueError(f"this is not a complete safetensors file ({error})") from None


def _parsed(text):
    """Returns the header as a dict. text: the bytes of the header. Raises ValueError if the text
    breaks a rule of the format. Python's JSON reader accepts some texts that the format does not
    allow, so this function checks more."""
    try:
        told = json.loads(text.decode("utf-8"), object_pairs_hook=_no_key_twice,
                          parse_constant=_no_number, parse_int=_whole)
    except RecursionError:
        raise ValueError("the header has lists that are nested too deeply") from None
    if not isinstance(told, dict):
        raise ValueError(f"wanted a dict of tensors as the header; got {str(told)[:40]}")
    return told


def _no_key_twice(pairs):
    found = {}
    for key, value in pairs:
        key.encode("utf-8")  # raises UnicodeEncodeError, a ValueError, for half a surrogate pair
        if key in found:
            raise ValueError(f"the header has the key {key[:80]!r} twice")
        found[key] = value
    return found


def _no_number(text):
    raise ValueError(f"the header has {text}, which is not a number in JSON")


def _whole(text):
    return -0.0 if text == "-0" else int(text)


def _entries(told, start, size):
    """Checks the tensors that the header describes. Returns {name: Entry}. told: the header, a
    dict. start: the position of the first byte after the header. size: the bytes of the file."""
    metadata = told.pop("__metadata__", None)
    if metadata is not None:
        if not isinstance(metadata, dict):
            raise ValueError(f"wanted a dict as __metadata__; got {str(metadata)[:40]}")
        for value in metadata.values():
            if not isinstance(value, str):
                raise ValueError("wanted only text as values in __metadata__; got "
                                 f"{str(value)[:40]}")
            value.encode("utf-8")
    for name, it in told.items():
        _check_form(name[:80], it)
    at, found = 0, {}
    for name, it in sorted(told.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = it["data_offsets"]
        wanted = _n_bytes(name[:80], it)
        if begin != at or end < begin:
            raise ValueError(f"{name[:80]} has bytes {begin} to {end}; wanted a range that begins "
                             f"at {at}, where the previous tensor ends")
        if end - begin != wanted:
            raise ValueError(f"{name[:80]} has {end - begin} bytes, but its shape and dtype want "
                             f"{wanted} bytes")
        found[name] = Entry(start + begin, it["dtype"], tuple(it["shape"]))
        at = end
    if start + at != size:
        raise ValueError(f"the tensors in the header have {at} bytes, but {size - start} bytes "
                         "follow the header")
    return found


def _check_form(name, it):
    """Raises ValueError unless `it` is a dict with a dtype, a shape and two offsets."""
    if not isinstance(it, dict) or it.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: wanted a dict of dtype, shape and data_offsets; got "
                         f"{str(it)[:80]}")
    shape, offsets = it["shape"], it["data_offsets"]
    if not isinstance(it["dtype"], str) or it["dtype"] not in BITS:
        raise ValueError(f"{name} has the dtype {str(it['dtype'])[:40]}; want one of "
                         f"{', '.join(BITS)}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not isinstance(shape, list):
        raise ValueError(f"{name}: wanted a list of sizes as shape, and two numbers as "
                         f"data_offsets; got {str(it)[:80]}")
    for number in (*shape, *offsets):
        if type(number) is not int or not 0 <= number <= MOST:  # True is an int, too
            raise ValueError(f"{name} has the size or offset {str(number)[:40]}; want an integer "
                             "from 0 to 2^64 - 1")


def _n_bytes(name, it):
    """Returns the bytes of a tensor with this dtype and shape."""
    n = 1
    for size in it["shape"]:
        n *= size
        if n > MOST:
            raise ValueError(f"{name} has the shape {str(it['shape'])[:80]}, which is too large")
    bits = n * BITS[it["dtype"]]
    if bits > MOST or bits % 8:
        raise ValueError(f"{name} has {bits} bits; want a multiple of 8, below 2^64")
    return bits // 8
