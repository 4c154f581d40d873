"""`minidl kernel bench softmax`: tests and times every rung of a kernel file.

    kernel        form   right?   error  tolerance       time     GB/s  of a copy
    softmax_v1    flat   right    2e-07      2e-05    0.41 ms     10.3       101%
    softmax_v2    fibre  WRONG    3e-01      2e-05   91.70 ms    0.046         0%

A rung is one version of a kernel. It is right if its error is at most the tolerance. The error is
the largest difference to a NumPy reference in float64, divided by the largest value of the
reference. float32 has a rounding error of 6e-8. A sum of n terms in another order differs by about
sqrt(n) rounding errors. The tolerance is 8 times this difference.

The time is the median over the repeats, and counts only the launches. On a GPU each repeat is the
mean of several launches in a row, so that Python's own time does not count. For GB/s each array of
a launch counts once, because the launch must move at least these bytes. The column "of a copy"
compares the speed with the speed of a copy that moves the same number of bytes. A matrix product is
limited by arithmetic, so its speed is in GFLOP/s, with 2 operations for a multiply-add.

Source: the programs of llm.c's dev/cuda.   Test: tests/cli/test_kernel_bench.py
The rungs: kernel_rungs.py, kernel_rungs_more.py   Tutorial: tutorials/03_kernel_tour.py
"""

import statistics
import time
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np

from minidl import backend
from minidl.cli import kernel_rungs, kernel_rungs_more
from minidl.cuda import Kernel, KernelError, is_available
from minidl.text import Columns, tr, word

COLUMNS = Columns(("kernel", "<28"), ("form", "<6"), ("right?", "<6"), ("error", ">8"),
                  ("tolerance", ">10"), ("time", ">11"), ("speed", ">15"), ("of a copy", ">10"),
                  gap=" ")


SIZES = kernel_rungs.SIZES | kernel_rungs_more.SIZES
FILES = kernel_rungs.FILES | kernel_rungs_more.FILES
# Small sizes for tests. The key is the number of sizes that a kernel has.
SMALL = {1: (1000,), 2: (9, 48), 3: (20, 36, 70), 4: (1, 2, 40, 16)}
IN_A_ROW = 10  # launches in one measurement on a GPU, so that the GPU never waits for the host


class Launch(NamedTuple):
    """One launch of a rung. n_bytes: the bytes of all arrays of the launch. Each array is counted
    once."""

    kernel: Kernel
    time_s: float
    n_bytes: int


class Rung(NamedTuple):
    """The result of one rung.

    launches: the Launches of the rung, the slowest first
    n_bytes, flop: bytes and operations of all launches
    copy_s:   the time of a copy that moves n_bytes"""

    launches: list
    right: bool
    error: float
    tolerance: float
    time_s: float
    n_bytes: int
    flop: int
    copy_s: float

    @property
    def name(self):
        kernel = self.launches[0].kernel
        return "cpu/" * (Path(kernel.path).parent.name == "cpu") + kernel.name

    @property
    def others(self):
        return f" +{len(self.launches) - 1}" * (len(self.launches) > 1)


def bench(name, size=None, device="cpu", repeats=5):
    """Prints a line for each rung of kernels/<name>.cu. Returns the exit status: 1 if a rung is
    wrong, otherwise 0. Raises KernelError for an unknown name, a wrong number of sizes, or a
    missing GPU."""
    name = name.removesuffix(".cu")
    if name not in SIZES:
        raise KernelError(f"no kernel file {name!r} to measure; there are "
                          f"{', '.join(sorted(SIZES))}")
    usual = SIZES[name][device != "cpu"]
    if size and len(size) != len(usual):
        raise KernelError(f"{name}: --size wants {len(usual)} numbers, such as "
                          f"{' '.join(map(str, usual))}; got {len(size)}")
    if device == "cuda" and not is_available():
        raise KernelError("--device cuda wants a GPU, but CuPy finds no GPU. `minidl doctor` tells "
                          "what is missing")
    print(tr(f"{name}: {' x '.join(map(str, size or usual))}, float32, on {device}"))
    print(COLUMNS.head(tr))
    n_wrong = 0
    for rung in rungs(name, size or usual, device, repeats):
        n_wrong += not rung.right
        print_line(rung, device)
    print(tr(f"Wrong: {n_wrong}."))
    return int(n_wrong > 0)


def rungs(name, size, device, repeats=5):
    """Runs each rung of a kernel file. Yields a Rung after each run."""
    rng = np.random.default_rng(0)
    xp = backend.xp_of([backend.to_device(np.zeros(1), device)])

    def draw(*shape):
        return backend.to_device(rng.standard_normal(shape, np.float32), device)

    op = import_module(f"minidl.{FILES.get(name, f'ops.{name}')}")
    more = name in kernel_rungs_more.SIZES
    for case in getattr(kernel_rungs_more if more else kernel_rungs, name)(op, draw, *size):
        for call in case.calls:
            yield measured(call, case, xp, repeats)


def measured(call, case, xp, repeats):
    """Returns the Rung of one call. The first call compiles the kernel, and its results are
    checked. Then the call is repeated, to measure the time."""
    tolerance = 8 * case.rounding * case.n_terms**0.5
    with recorded(xp):
        error = max(map(difference, arrays_of(call()), arrays_of(case.wanted)))
    rounds = []
    with recorded(xp, IN_A_ROW if xp is not np else 1) as launches:
        for _ in range(repeats):
            launches.clear()
            call()
            rounds.append(list(launches))
    rounds.sort(key=lambda launches: sum(each.time_s for each in launches))
    launches = sorted(rounds[repeats // 2], key=lambda each: -each.time_s)
    n_bytes = case.n_bytes or sum(each.n_bytes for each in launches)
    time_s = statistics.median(sum(each.time_s for each in launches) for launches in rounds)
    right = bool(error <= tolerance)  # False if the error is nan
    return Rung(launches, right, error, tolerance, time_s, n_bytes, case.flop,
                copy_time_s(n_bytes, xp, repeats))


def print_line(rung, device):
    """Prints the line of one Rung."""
    if rung.flop:
        speed, share = f"{rung.flop / rung.time_s / 1e9:.3g} GFLOP/s", ""
    else:
        speed = f"{rung.n_bytes / rung.time_s / 1e9:.3g} GB/s"
        share = f"{rung.copy_s / rung.time_s:.0%}"
    form = "GPU" if device != "cpu" else word(rung.launches[0].kernel.on_cpu.form, tr)
    verdict = word("right", tr) if rung.right else word("WRONG", tr)
    print(COLUMNS.row(rung.name + rung.others, form, verdict, f"{rung.error:.0e}",
                      f"{rung.tolerance:.0e}", f"{1e3 * rung.time_s:,.3f} ms", speed, share))


@contextmanager
def recorded(xp, times=1):
    """Yields a list, for a `with` block. Every launch in the block adds a Launch to this list.
    times: how many times each launch is done."""
    launches, launch = [], Kernel.__call__

    def timed(kernel, grid, block, args, **options):
        time_s = seconds(lambda: launch(kernel, grid, block, args, **options), xp, times)
        n_bytes = sum(a.nbytes for a in args if hasattr(a, "nbytes") and a.ndim)
        launches.append(Launch(kernel, time_s, n_bytes))

    with mock.patch.object(Kernel, "__call__", timed):
        yield launches


def seconds(work, xp, times=1):
    """Returns the seconds of one call of work(), as a mean. times: the number of calls. On a GPU,
    the GPU's clock measures from the start of the first call to the end of the last call. While the
    GPU works on a call, the host launches the next call."""
    if xp is np:
        start = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - start) / times
    stream = xp.cuda.get_current_stream()
    begin, end = xp.cuda.Event(), xp.cuda.Event()
    begin.record(stream)
    for _ in range(times):
        work()
    end.record(stream)
    end.synchronize()
    return 1e-3 * xp.cuda.get_elapsed_time(begin, end) / times


def copy_time_s(n_bytes, xp, repeats):
    """Returns the seconds of a copy that reads n_bytes / 2 and writes n_bytes / 2."""
    source = xp.ones(max(n_bytes // 8, 1), np.float32)
    target, times = source.copy(), IN_A_ROW if xp is not np else 1
    return statistics.median(seconds(lambda: xp.copyto(target, source), xp, times)
                             for _ in range(repeats + 1))


def arrays_of(result):
    return result if isinstance(result, (tuple, list)) else (result,)


def difference(got, wanted):
    """Returns the largest difference, divided by the largest wanted value. Returns inf if the
    shapes differ."""
    got, wanted = backend.to_device(got, "cpu").astype(np.float64), np.asarray(wanted)
    if got.shape != wanted.shape:
        return np.inf
    return float(np.max(np.abs(got - wanted)) / max(np.max(np.abs(wanted)), 1e-30))
