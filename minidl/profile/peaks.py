"""Measures the best speed of this machine. `minidl doctor --peaks` measures and stores it.

    float32, float64     operations in a second, while two matrices are multiplied. They have 1024
                         rows and columns (4096 on a GPU)
    bandwidth            bytes that a copy reads and writes in a second. The arrays are too large
                         for the caches

The fastest of several rounds counts, because other programs can only make a round slower.
Test: tests/profile/test_flops.py   Used by: summary.py
"""

import functools
import platform
import time

import numpy as np

from minidl import backend, cuda
from minidl.comm.select import file_in, is_number, keep, kept

MOST_PER_S = 1e18  # operations a second: the speed of 1000 GPUs. A larger number is an error


def measure(device="cpu", n=None, n_bytes=1 << 26, seconds=0.5, dtypes=("float32", "float64")):
    """Returns a dict. For each dtype in `dtypes` it has {dtype: operations a second}. It also has
    {"bandwidth": bytes a second, "threads": number of CPU threads}.

    device: "cpu" or "cuda". n: the number of rows of the matrices. n_bytes: the size of the copy.
    seconds: how long each of these numbers is measured."""
    xp, wait = (np, lambda: None) if device == "cpu" else (backend.import_cupy(), cuda.synchronize)

    def least(work, *args):
        """Calls work(*args) again and again for `seconds` seconds. Returns the shortest time of a
        call."""
        times, begun = [], time.perf_counter()
        while not times or time.perf_counter() - begun < seconds:
            wait()
            start = time.perf_counter()
            work(*args)
            wait()
            times.append(time.perf_counter() - start)
        return min(times)

    n, found = n or (1024 if xp is np else 4096), {"threads": cuda.n_threads()}
    for dtype in dtypes:
        a, out = xp.ones((n, n), dtype), xp.empty((n, n), dtype)
        found[dtype] = 2 * n**3 / least(functools.partial(xp.matmul, out=out), a, a)
    found["bandwidth"] = 2 * n_bytes / least(xp.copyto, *xp.zeros((2, n_bytes), np.uint8))
    return found


def file_of(device="cpu"):
    """Returns the path of the file with the peaks. There is one file for each number of CPU
    threads. It is in the folder in which comm/select.py keeps the measured times of messages."""
    return file_in("peaks", f"{platform.node()}-{device}-{cuda.n_threads()}")


def stored(device="cpu"):
    """Returns the peaks that store() wrote on this machine, a dict. Returns None if there are none.
    Warns if the file is damaged, or if a number in it cannot be right."""
    def are_good(found):
        return all(is_number(found[key], 1, MOST_PER_S)
                   for key in ("threads", "float32", "float64", "bandwidth"))

    return kept(file_of(device), are_good, "--peaks")


def store(device="cpu", **options):
    """Measures the peaks and writes the file. Returns the text that `minidl doctor` prints."""
    found = measure(device, **options)
    where = f"{device}, {found['threads']} threads" if device == "cpu" else device
    return (f"{where}: float32 {found['float32'] / 1e9:,.0f} GFLOP/s, float64 "
            f"{found['float64'] / 1e9:,.0f} GFLOP/s, memory {found['bandwidth'] / 1e9:,.1f} GB/s\n"
            f"{keep(file_of(device), found)}")
