"""IDX, the file format of MNIST.   Test: tests/data/test_idx.py

    byte  0    1    2      3      4 ...              4 + 4 ndim ...
          0    0    type   ndim   ndim sizes         the elements, row-major
                                  (uint32)           (everything big-endian)

Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits", last section of its page.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CODES = {np.dtype(t).newbyteorder("="): code for code, t in TYPES.items()}


def read(path):
    """The array in an IDX file, gzipped or plain (told by its content), in native byte order."""
    raw = Path(path).read_bytes()
    if raw[:2] == b"\x1f\x8b":  # gzip's own magic number
        try:
            raw = gzip.decompress(raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: damaged gzip file ({error}). Fetch it again.") from error
    if len(raw) < 4:
        raise ValueError(f"{path}: truncated: an IDX header has at least 4 bytes, got {len(raw)}")
    if raw[:2] != b"\0\0" or raw[2] not in TYPES:
        known = ", ".join(f"{code:02x}" for code in TYPES)
        raise ValueError(f"{path}: not an IDX file: wanted 00 00 and a type among {known}, "
                         f"got {raw[:4].hex(' ')}")
    dtype, n_dims = np.dtype(TYPES[raw[2]]), raw[3]
    start = 4 + 4 * n_dims
    if len(raw) < start:
        raise ValueError(f"{path}: truncated: a header of {n_dims} sizes has {start} bytes, "
                         f"got {len(raw)}")
    shape = tuple(int(size) for size in np.frombuffer(raw, ">u4", n_dims, offset=4))
    wanted = start + math.prod(shape) * dtype.itemsize
    if len(raw) != wanted:
        fault = "truncated" if len(raw) < wanted else "longer than its header says"
        raise ValueError(f"{path}: {fault}: shape {shape} of {dtype.itemsize}-byte elements makes "
                         f"{wanted} bytes, got {len(raw)}")
    return np.frombuffer(raw, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def write(path, array):
    """Write `array` as an IDX file, gzipped if the name ends in .gz."""
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in CODES:
        known = ", ".join(map(str, CODES))
        raise ValueError(f"IDX holds {known}; got {dtype}. Convert with astype.")
    header = bytes([0, 0, CODES[dtype], array.ndim]) + np.asarray(array.shape, ">u4").tobytes()
    raw = header + array.astype(dtype.newbyteorder(">")).tobytes()
    # mtime=0: the same array gives the same file, whenever it is written
    Path(path).write_bytes(gzip.compress(raw, mtime=0) if str(path).endswith(".gz") else raw)
