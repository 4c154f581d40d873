"""`minidl kernel bench softmax`: every rung of a kernel file, right or wrong, and how fast.

    kernel        form   right?   error  tolerance       time     GB/s  of a copy
    softmax_v1    flat   right    2e-07      2e-05    0.41 ms     10.3       101%
    softmax_v2    fibre  WRONG    3e-01      2e-05   91.70 ms    0.046         0%

A rung is right if it differs from its NumPy reference in float64 by no more than the tolerance,
both as a share of the largest value wanted. float32 rounds by 6e-8, and a sum of n terms in another
order differs by some sqrt(n) of these; 8 times that is allowed.

Time is that of the launches alone, the median of the repeats. Bytes: each array of a launch once,
the least that it must move; a copy of as many bytes is timed, too. A product is limited by
arithmetic: its speed is in GFLOP/s, 2 operations for a multiply-add.

Source: the programs of llm.c's dev/cuda.   Test: tests/cli/test_kernel_bench.py
The rungs: kernel_rungs.py   Tutorial: tutorials/03_kernel_tour.py
"""

import statistics
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np

from minidl import backend
from minidl.cli import kernel_rungs
from minidl.cuda import Kernel, KernelError, is_available
from minidl.text import Columns, tr, word

COLUMNS = Columns(("kernel", "<28"), ("form", "<6"), ("right?", "<6"), ("error", ">8"),
                  ("tolerance", ">10"), ("time", ">11"), ("speed", ">15"), ("of a copy", ">10"),
                  gap=" ")


def bench(name, size=None, device="cpu", repeats=5):
    """Print a line for each rung of kernels/<name>.cu; the exit status, 1 if one is wrong."""
    name = name.removesuffix(".cu")
    if name not in kernel_rungs.SIZES:
        known = ", ".join(sorted(kernel_rungs.SIZES))
        raise KernelError(f"no bench for {name!r}; there are {known}")
    usual = kernel_rungs.SIZES[name][device != "cpu"]
    if size and len(size) != len(usual):
        raise KernelError(f"{name}: --size wants {len(usual)} numbers, such as "
                          f"{' '.join(map(str, usual))}; got {len(size)}")
    if device == "cuda" and not is_available():
        raise KernelError("--device cuda wants a GPU; CuPy finds none. `minidl doctor` says more")
    rng, n_wrong = np.random.default_rng(0), 0
    xp = backend.xp_of([backend.to_device(np.zeros(1), device)])

    def draw(*shape):
        return backend.to_device(rng.standard_normal(shape, np.float32), device)

    print(tr(f"{name}: {' x '.join(map(str, size or usual))}, float32, on {device}"))
    print(COLUMNS.head(tr))
    op = import_module("minidl.ops." + kernel_rungs.FILES.get(name, name))
    for case in getattr(kernel_rungs, name)(op, draw, *(size or usual)):
        for call in case.calls:
            n_wrong += not rung(call, case, xp, repeats)
    print(tr(f"Wrong: {n_wrong}."))
    return int(n_wrong > 0)


def rung(call, case, xp, repeats):
    """Run one, print its line; whether it is right."""
    tolerance = 8 * 6e-8 * case.n_terms**0.5
    with recorded(xp) as launches:
        error = max(map(difference, arrays_of(call()), arrays_of(case.wanted)))  # this one compiles
        times = []
        for _ in range(repeats):
            launches.clear()
            call()
            times.append(sum(time_s for _, time_s, _ in launches))
    kernel = max(launches, key=lambda launch: launch[1])[0]  # the slowest names the rung
    n_bytes = sum(n_bytes for _, _, n_bytes in launches)
    time_s, others = statistics.median(times), f" +{len(launches) - 1}" * (len(launches) > 1)
    if case.flop:
        speed, share = f"{case.flop / time_s / 1e9:.3g} GFLOP/s", ""
    else:
        speed = f"{n_bytes / time_s / 1e9:.3g} GB/s"
        share = f"{copy_time_s(n_bytes, xp, repeats) / time_s:.0%}"
    right = error <= tolerance  # not, if it is nan
    form = word(kernel.on_cpu.form, tr) if xp is np else "GPU"
    verdict = word("right", tr) if right else word("WRONG", tr)
    name = "cpu/" * (Path(kernel.path).parent.name == "cpu") + kernel.name
    print(COLUMNS.row(name + others, form, verdict, f"{error:.0e}", f"{tolerance:.0e}",
                      f"{1e3 * time_s:,.3f} ms", speed, share))
    return right


@contextmanager
def recorded(xp):
    """A list of (kernel, seconds, bytes of its arrays) of every launch in the `with` block."""
    launches, launch = [], Kernel.__call__

    def timed(kernel, grid, block, args, **options):
        time_s = seconds(lambda: launch(kernel, grid, block, args, **options), xp)
        n_bytes = sum(a.nbytes for a in args if hasattr(a, "nbytes") and a.ndim)
        launches.append((kernel, time_s, n_bytes))

    with mock.patch.object(Kernel, "__call__", timed):
        yield launches


def seconds(work, xp):
    """How long work() takes; on a GPU until all of it is done."""
    wait = xp.cuda.Device().synchronize if xp is not np else lambda: None
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def copy_time_s(n_bytes, xp, repeats):
    """The time of a copy that reads n_bytes / 2 and writes n_bytes / 2."""
    source = xp.ones(max(n_bytes // 8, 1), np.float32)
    target = source.copy()
    return statistics.median(seconds(lambda: xp.copyto(target, source), xp)
                             for _ in range(repeats + 1))


def arrays_of(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def difference(got, wanted):
    """The largest difference, as a share of the largest value wanted; inf if the shapes differ."""
    got, wanted = backend.to_device(got, "cpu").astype(np.float64), np.asarray(wanted)
    if got.shape != wanted.shape:
        return np.inf
    return float(np.max(np.abs(got - wanted)) / max(np.max(np.abs(wanted)), 1e-30))
