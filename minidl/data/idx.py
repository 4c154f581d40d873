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
# The largest size of an array in bytes. MNIST has 47 million bytes. The largest similar data set
# has a billion bytes.
MOST_BYTES = 4 << 30
MOST_DIMENSIONS = 32  # every version of NumPy has arrays of 32 dimensions
PART = 1 << 20  # bytes in one read
CODES = {np.dtype(t).newbyteorder("="): code for code, t in TYPES.items()}


def read(path, most_bytes=MOST_BYTES):
    """Returns the array in an IDX file, in native byte order. The file may be gzipped: its first
    two bytes show this. Raises ValueError if the file is damaged, or if its array has more than
    most_bytes bytes."""
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"  # every gzip file starts with these two bytes
        file.seek(0)
        try:
            return _array(path, gzip.GzipFile(fileobj=file) if packed else file, most_bytes)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"{path}: damaged gzip file ({error}). Fetch it again.") from error


def _array(path, file, most_bytes):
    """Returns the array in the open file. Reads the header first, and then only the bytes that the
    header announces, because a few bytes of gzip can become gigabytes."""
    head = file.read(4)
    if len(head) < 4:
        raise ValueError(f"{path} is truncated: an IDX header has at least 4 bytes; got "
                         f"{len(head)}")
    if head[:2] != b"\0\0" or head[2] not in TYPES:
        known = ", ".join(f"{code:02x}" for code in TYPES)
        raise ValueError(f"{path} is not an IDX file: its first bytes must be 00 00 and one of "
                         f"{known}; got {head.hex(' ')}")
    dtype, n_dims = np.dtype(TYPES[head[2]]), head[3]
    start, sizes = 4 + 4 * n_dims, file.read(4 * n_dims)
    if len(sizes) < 4 * n_dims:
        raise ValueError(f"{path} is truncated: a header of {n_dims} sizes has {start} bytes; "
                         f"got {4 + len(sizes)}")
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    wanted = math.prod(shape) * dtype.itemsize
    says = (f"a file of shape {shape} with {dtype.itemsize}-byte elements has {start + wanted} "
            "bytes")
    if n_dims > MOST_DIMENSIONS or wanted > most_bytes:
        raise ValueError(f"{path}: {says}; want at most {most_bytes} bytes and {MOST_DIMENSIONS} "
                         "dimensions. To allow more bytes, pass most_bytes")
    parts, n = [], 0  # reads parts, so a file that is cut off needs no memory for its missing bytes
    while n < wanted and (part := file.read(min(wanted - n, PART))):
        parts.append(part)
        n += len(part)
    if n < wanted:
        raise ValueError(f"{path} is truncated: {says}; got {start + n}")
    if more := len(file.read(1)):  # reading to the end makes gzip compare its checksum
        raise ValueError(f"{path} is longer than its header says: {says}; got {start + n + more} "
                         "or more")
    array = np.frombuffer(b"".join(parts), dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def write(path, array):
    """Writes `array` as an IDX file, gzipped if the name ends in .gz. Raises ValueError if the
    format has no code for its dtype."""
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("=")
    if dtype not in CODES:
        known = ", ".join(map(str, CODES))
        raise ValueError(f"IDX has codes for the dtypes {known}; got {dtype}. Convert the array "
                         "with astype.")
    header = bytes([0, 0, CODES[dtype], array.ndim]) + np.asarray(array.shape, ">u4").tobytes()
    raw = header + array.astype(dtype.newbyteorder(">")).tobytes()
    # With mtime=0 the same array always gives the same file.
    Path(path).write_bytes(gzip.compress(raw, mtime=0) if str(path).endswith(".gz") else raw)
