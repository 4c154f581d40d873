"""Tries the flat form of a kernel before its first launch, and compares it with a plain loop.

flat.py makes the flat form by edits of text. A mistake in flat.py could make results silently
wrong. So before the first launch of a flat kernel in a process, this file runs the kernel twice.
The first run is the fast loop. The second run is the unedited kernel, one thread after the other.
Both runs get copies of the arrays, and at most two blocks along each axis. If the results differ by
more than rounding, that is an error.

    first launch:   copies -> fast loop  -> results     equal?   then the launch itself
                    copies -> plain loop -> results

A kernel with a race also fails this check, because its result depends on the order of threads.
MINIDL_SELF_CHECK=0 switches this check off. Some kernels are not checked: kernels that print, that
use __device__ variables, or that get tables of addresses. If the arrays of the first launch have
more than 64 MiB, a later, smaller launch is checked instead.
Test: tests/cuda/host/test_selfcheck.py
"""

import os
import re

import numpy as np

from minidl.cuda.host.arena import Arena
from minidl.cuda.host.arguments import dims
from minidl.cuda.host.includes import KernelError

MAX_BYTES = 64 << 20  # the most bytes that a check copies. To copy 64 MiB takes 30 ms
BLOCKS = 2  # blocks along each axis. The second block tests indices that use the block's number


def can_check(source, name):
    """Returns True if one more run of the kernel changes only the kernel's arrays."""
    return not _HAS_EFFECTS.search(source.reached_text(name))


_HAS_EFFECTS = re.compile(
    r"\b(printf|clock|clock64|volatile|__managed__)\b|\b__device__\s[^;(){}]*[;=]")


def check(kernel, grid, block, args, shared_mem):
    """Tries the CpuKernel. Returns True if the kernel does not need to be tried again. Returns
    False if the arrays of this launch are too large to try. Raises KernelError if the fast loop and
    the plain loop give different results."""
    if os.environ.get("MINIDL_SELF_CHECK") == "0" or not kernel.plain:
        return True
    parameters = kernel.signature.parameters
    if any(p.kind == "pointer" and p.text.count("*") > 1 for p in parameters):
        return True
    arrays = [a for a in args if isinstance(a, np.ndarray)]
    if sum(a.nbytes for a in arrays) > MAX_BYTES:
        return False
    kernel.signature.pack(grid, block, args, shared_mem, 0, 1)  # raises if an argument is wrong
    small = tuple(min(n, BLOCKS) for n in dims(grid))
    arena = Arena(kernel.name, parameters, args)
    results = []
    for launcher in (kernel.plain, kernel.launcher):
        for region in arena.regions:
            region.fill()
        packed = kernel.signature.pack(small, block, arena.passed(), shared_mem, 0, 1)
        if launcher(packed):
            return True  # the launch itself will raise this error
        results.append([r.memory.copy() for r in arena.writeable])
    for region, plain, fast in zip(arena.writeable, *results, strict=True):
        for part in region.parts:
            _compare(kernel, part, part.of(plain), part.of(fast))
    return True


@np.errstate(invalid="ignore")  # NumPy 2.5 warns when a signalling nan becomes a quiet nan
def _compare(kernel, part, plain, fast, member=""):
    if plain.tobytes() == fast.tobytes():
        return
    if plain.dtype.names:  # compares the members of structs, and not the gaps between the members
        for name in plain.dtype.names:
            _compare(kernel, part, plain[name], fast[name], f"{member}.{name}")
        return
    if plain.dtype.kind == "f":
        a, b = plain.astype(np.float64), fast.astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        # Sums in another order and products with fma have other rounding errors. So a small error,
        # relative to the largest number, is allowed.
        scale = np.abs(a[finite]).max() if finite.any() else 0.0
        near = np.abs(np.where(finite, a - b, 0)) <= 1e-2 * np.abs(a) + 1e-3 * scale
        wrong = ~np.where(finite, near, (a == b) | (np.isnan(a) & np.isnan(b)))
    else:
        wrong = plain != fast
    if not wrong.any():
        return
    i = tuple(np.argwhere(wrong)[0])
    raise KernelError(
        f"kernel {kernel.signature}: the fast loop over its threads gives "
        f"{part.name}[{', '.join(map(str, i))}]{member} = "
        f"{fast[i]}, the plain loop gives {plain[i]}. There are two possible causes. If the "
        "result depends on the order of threads, `minidl kernel run` on the script tells where. "
        "If not, minidl's flat form has a bug: pass form='fibre', and please report the bug")
