"""Launches kernels that work on rows: chooses the version for the device and the row length.

A file has several versions of a kernel. They are called rungs, because they are like the rungs of a
ladder. A later version is faster and harder to read.

    cpu  a thread per row, in vectors     for a CPU: cpu/FILE.cu
    v1   a thread per row                 never chosen. Read this version first
    v2   a block per row                  for a GPU: rows for which v3 to v5 do not fit
    v3   a warp per row, in registers     for a GPU: rows up to MAX_KEPT elements
    v4   v3 with 16 bytes an access       as v3, if each row begins at a multiple of 16 bytes
    v5   a block per row, in registers,   for rows up to eight times MAX_KEPT elements, if each row
         16 bytes an access               begins at a multiple of 16 bytes

Test: tests/cuda/test_rows.py, tests/ops/test_layer_norm_kernel.py
"""

import functools
import math

import numpy as np
from numpy import ndarray

from minidl import backend
from minidl.cuda import dispatch, run
from minidl.cuda.launch import BLOCK, LARGEST

# The most elements of a row for v3. Each of 32 lanes keeps 32 elements in registers. With more
# elements, registers spill.
MAX_KEPT = 1024
# The most rows of a launch on a GPU. The kernel counts threads in an int, and a row may have 32
# threads.
MAX_ROWS = 2**31 // 32


def backend_of(x):
    return np if type(x) is ndarray else backend.xp_of([x])


def as_rows(x):
    """Returns x, (..., n), as a contiguous array (rows, n). Copies x only if needed."""
    if x.ndim == 2 and x.flags.c_contiguous:
        return x
    rows = math.prod(x.shape[:-1])
    return backend_of(x).ascontiguousarray(x).reshape(rows, x.shape[-1])


def blocks(n, size):
    """Returns how many blocks of `size` elements are needed for n elements."""
    return -(-n // size)


def best_rung(xp, cols, dtype):
    """Returns the fastest rung for rows of `cols` elements: 2 to 5, or "cpu"."""
    if xp is np:
        return "cpu"
    whole = cols * dtype.itemsize % 16 == 0
    if cols <= MAX_KEPT:
        return 4 if whole else 3
    return 5 if whole and cols <= BLOCK // 32 * MAX_KEPT else 2


def check_size(name, rows, cols):
    """Raises ValueError if a launch on a GPU needs numbers that do not fit in an int."""
    if rows > MAX_ROWS or cols > LARGEST:
        raise ValueError(f"{name}: wanted at most {MAX_ROWS} rows of at most {LARGEST} elements in "
                         f"a launch on a GPU; got {rows} rows of {cols} elements. If there are "
                         "too many rows, cut the array along its first dimension. If the rows are "
                         "too long, cut the array along its last dimension")


def kernel(file, name, dtype, form="auto", order="ascending", **defines):
    """Returns dispatch.kernel(...) with one more macro: ACC, the type of the sums. form, order: how
    the CPU runs the kernel, as in `cuda.kernel`."""
    defines = {"ACC": dispatch.SUM_TYPES[dtype], **defines}
    if form == "auto" and order == "ascending":
        return dispatch.kernel(file, name, dtype, **defines)
    types = {"T": dispatch.C_TYPES[np.dtype(dtype)]}
    return run.kernel(file, name, defines={**types, **defines}, form=form, order=order)


def kept(xp, rung, cols, dtype):
    """Returns {"KEEP": a number} for rungs 3 to 5, else {}. KEEP is a macro: the number of elements
    of the row that each thread keeps in registers. The number is a power of two, so that few
    variants are compiled. It is the smallest power of two that is enough for the row, so that few
    registers are wasted."""
    if xp is np or rung in ("cpu", 1, 2):
        return {}
    team = BLOCK if rung == 5 else 32
    return {"KEEP": max(1 if rung == 3 else 16 // dtype.itemsize,
                        (1 << (cols - 1).bit_length()) // team)}


@functools.lru_cache(maxsize=None)
def _rung(file, name, dtype, cols, rung, form):
    """Returns (kernel, how many rows one block of this kernel works on). cols: the length of a row,
    or 0 on the CPU. rung: as in launch(). form: (name, value) pairs for kernel()."""
    xp = None if cols else np
    rung = rung or best_rung(xp, cols, dtype)
    if rung == "cpu":
        file = dispatch.on_cpu(file)
    else:
        name = f"{name}_v{rung}"
    run = kernel(file, name, dtype, **dict(form), **kept(xp, rung, cols, dtype))
    return run, {"cpu": BLOCK, 1: BLOCK, 2: 1, 5: 1}.get(rung, BLOCK // 32)


def launch(file, name, x, args, rung=None, macros=(), form=None):
    """Launches a kernel on the rows of x, (rows, cols), with a thread, a warp or a block for each
    row.

    rung:   1 to 5 or "cpu". If None, best_rung() chooses.
    macros: (name, value) pairs.
    form:   {"form": ..., "order": ...}, as in `cuda.kernel`.
    Raises ValueError if x is too large for one launch on a GPU."""
    rows, cols = x.shape
    width = 0
    if type(x) is not ndarray:
        check_size(name, rows, cols)
        width = cols
    if form:
        macros = *macros, *form.items()
    run, a_block = _rung(file, name, x.dtype, width, rung, macros)
    run(-(-rows // a_block), BLOCK, args)
