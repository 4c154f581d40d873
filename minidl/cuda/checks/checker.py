"""The check form: runs a kernel on the CPU, checks every load and store, and reports what would be
wrong on a GPU.

    report = check("reduce.cu", 4, 256, (out, x, n))
    print(report)      reduce.cu:14: data race: thread 3 reads s[19], thread 19 wrote it at line ...

1. The file is compiled with calls to the compiler's sanitizers, which are functions of ours:
   hooks.py (kernels/host/check.cpp: which array, how often; shadow.h: the last threads there).
2. The arrays are copied, apart from each other: arena.py.
3. The kernel runs with threads and blocks in ascending, descending and shuffled order. Sound
   kernels give the same bits.
4. Findings become sentences, sentences.py, in a report with the traffic: report.py.

It knows no other order than that of __syncthreads, __syncwarp and atomics on the same element. A
block that learns from an atomic ticket that another has passed its __threadfence() gets a warning,
not an error. So do two writes of the same value.
Test: tests/cuda/checks/test_check*.py   Tutorial: tutorials/02_add3.py
"""

import ctypes
import functools
import math
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np

from minidl.cuda.checks import hooks
from minidl.cuda.checks.report import Finding, Report, Traffic
from minidl.cuda.checks.sentences import Shared, Words, engine_finding
from minidl.cuda.host import cpu
from minidl.cuda.host.arena import Arena
from minidl.cuda.host.arguments import dims
from minidl.cuda.host.includes import KernelError
from minidl.cuda.run import ORDERS as NUMBERS
from minidl.cuda.run import Kernel, _choose, _stamp
from minidl.cuda.run import kernel as load

ORDERS = ("ascending", "descending", 7)  # 7: a seed to shuffle with
ORDER_MATTERS = "result depends on thread order"

_lock = threading.Lock()  # check.cpp watches one launch at a time


def check(kernel, grid, block, args, *, name=None, defines=None, shared_mem=0, outputs=(),
          reachable=(), orders=ORDERS):
    """Run `kernel` (a Kernel, or a .cu file with `name`) on grid x block threads; a Report.

    args:      NumPy arrays and numbers, as for a launch; the arrays hold its results afterwards,
               unless it had to be stopped.
    outputs:   names of array parameters that hold nothing yet: reading one before it is written is
               an error, and so is an element that is never written.
    reachable: arrays that the kernel reaches through a table of addresses.
    orders:    of threads and blocks; one run for each.
    Errors of the launch itself are raised as by a launch: KernelError, TypeError, ValueError."""
    if not isinstance(kernel, Kernel):
        kernel = load(kernel, name, defines=defines)
    path, defines = kernel.path, tuple(sorted(kernel.defines.items()))
    instance = kernel.name if kernel.name and "<" in kernel.name else ""
    library = _library(path, defines, instance, _stamp(path))
    watched = _choose(library.kernels, kernel.name, path)
    with _lock:
        run = _Run(watched, path, library.file, grid, block, args, shared_mem, outputs, reachable)
        return run.report(orders)


@functools.lru_cache(maxsize=256)
def _library(path, defines, instance, stamp):
    return hooks.compile_check(path, dict(defines), instance)


class _Run:
    """A launch in the check form, repeated in several orders of threads."""

    def __init__(self, kernel, path, file, grid, block, args, shared_mem, outputs, reachable):
        self.kernel, self.path, self.file, self.hooks = kernel, path, file, hooks.hooks()
        self.launch = grid, block, shared_mem
        parameters = kernel.signature.parameters
        kernel.signature.pack(grid, block, args, shared_mem, 0, 1)  # raises what a launch would
        self.grid, self.block = dims(grid), dims(block)
        if math.prod(self.grid) * math.prod(self.block) >= 2**31:
            raise KernelError(f"kernel {kernel.name}: the check form can tell 2^31 threads apart; "
                              "launch fewer blocks")
        names = [p.name for p in parameters if p.kind == "pointer"]
        if unknown := set(outputs) - set(names):
            raise ValueError(f"outputs: kernel {kernel.name} has no array "
                             f"{', '.join(sorted(unknown))}; it has {', '.join(names)}")
        self.arena = Arena(kernel.name, parameters, args, outputs, reachable)

    def report(self, orders):
        report = Report(self.kernel.name, Path(self.path))
        first = None
        for order in orders:
            stopped = self._watch(order)
            self._collect(report, stopped)
            results = [r.memory.copy() for r in self.arena.writeable]
            if first is None:
                first, first_order = results, order
                report.ledger, report.shared = self._ledger()
            if stopped:
                break
            self._compare(report, first, results, first_order, order)
        else:
            for r, result in zip(self.arena.writeable, first, strict=True):
                r.write_back(result)
        report.findings.sort(key=lambda f: (f.warning, f.kind == ORDER_MATTERS))
        return report

    def _watch(self, order):
        """Run the kernel once; the sentence with which it was stopped, or None."""
        for region in self.arena.regions:
            region.fill()
        grid, block, shared_mem = self.launch
        passed, number = self.arena.passed(), NUMBERS.get(order, order)
        packed = self.kernel.signature.pack(grid, block, passed, shared_mem, number, 1)
        launch = ctypes.create_string_buffer(packed, len(packed))
        regions = [(r.memory.ctypes.data, r.n_bytes, r.granule, r.const, r.uninitialised)
                   for r in self.arena.regions]
        given = (hooks.GivenRegion * len(regions))(*regions)
        self.hooks.minidl_check_begin(
            given, len(given), self.arena.memory.ctypes.data, self.arena.memory.nbytes,
            ctypes.addressof(launch), len(packed), shared_mem, math.prod(self.grid),
            ctypes.cast(self.kernel._launch, ctypes.c_void_p))
        stopped = self.kernel._launch(launch)
        self.n_findings = self.hooks.minidl_check_end(not stopped)
        return cpu.runtime().minidl_error().decode() if stopped else None

    def _collect(self, report, stopped):
        """Add what one run found to the report."""
        raw = self.hooks.minidl_check_findings()[: self.n_findings]
        lines = self._lines({w for f in raw for w in (f.where, f.other_where) if w})
        words = Words(self.grid, self.block, self.arena.regions, self._shared(), lines)
        for f in raw:
            report.add(words.finding(f))
        if stopped and not any(f.fatal for f in raw):
            report.add(engine_finding(stopped))

    def _shared(self):
        """The __shared__ variables that this run has met."""
        infos = self.hooks.minidl_check_shared_info()
        numbers = range(len(self.arena.regions), self.hooks.minidl_check_regions())
        n_bytes = self.hooks.minidl_check_region_bytes
        return [Shared(s.name.decode(), s.element, s.rows, s.columns, n_bytes(i))
                for i in numbers for s in [infos[i]]]

    def _ledger(self):
        """({array: Traffic}, {__shared__ variable: Traffic}) of the run."""
        raw = self.hooks.minidl_check_traffic()
        counted = [Traffic(*(getattr(raw[i], name) for name in vars(Traffic())))
                   for i in range(self.hooks.minidl_check_regions())]
        arrays = {self.arena.regions[i].name: counted[i] for i in self.arena.in_order()}
        shared = {}
        for variable, traffic in zip(self._shared(), counted[len(arrays) :], strict=True):
            shared[variable.name] = shared.get(variable.name, Traffic()) + traffic
        return arrays, shared

    def _compare(self, report, first, results, first_order, order):
        """A finding if another order of threads gave other bits."""
        if any(f.kind == ORDER_MATTERS for f in report.findings):
            return
        for region, a, b in zip(self.arena.writeable, first, results, strict=True):
            different = np.flatnonzero(a != b)
            if not len(different):
                continue
            offset = int(different[0])
            part = region.part_at(offset)
            index, one, other = part.index(offset), part.of(a), part.of(b)
            first_order, order = (o if o in NUMBERS else "shuffled" for o in (first_order, order))
            where = self.hooks.minidl_check_writer(self.arena.regions.index(region), offset)
            file, line = self._lines({where}).get(where, ("", 0)) if where else ("", 0)
            place = np.unravel_index(index, part.array.shape)
            row = f"row {place[0]}" if len(place) > 1 else region.element(offset)
            text = (f"first difference {row}{f', store line {line}' * (line > 0)}: "
                    f"{part.name}[{', '.join(map(str, place))}] is {one[index]} in {first_order} "
                    f"order, {other[index]} in {order} order")
            # sums of floats by atomics are rounded in the order in which they come
            atomics = any(t.atomics for t in [*report.ledger.values(), *report.shared.values()])
            rounding = atomics and one.dtype.kind == "f" and np.allclose(one, other, 1e-3, 1e-5)
            remedy = "Look for a missing barrier, or for what several threads write."
            if rounding:
                remedy = "Atomics add floats in any order: if that is meant, last digits differ."
            report.add(Finding(ORDER_MATTERS, text, remedy, file, line, bool(rounding)))
            return

    def _lines(self, places):
        """{place in the code: (file name, line)}, the student's own line through inlined calls."""
        if not places:
            return {}
        tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
        if tool is None:
            raise KernelError("the check form needs addr2line to name lines: install binutils (it "
                              "comes with g++)")
        wanted = sorted(places)
        # a return address is behind its call; one byte before it is inside the call
        command = [tool, "-e", str(self.file), "-i", "-a", *(hex(p - 1) for p in wanted)]
        output = subprocess.run(command, capture_output=True, text=True).stdout
        lines, at = {}, iter(wanted)
        for text in output.splitlines():
            if text.startswith("0x"):  # the frames of the next place follow, innermost first
                place = next(at)
            elif (frame := re.match(r"(.*):(\d+)", text)) and place not in lines:
                path = Path(frame[1])
                ours = path.parts[-3:-1] == ("kernels", "host")  # in any copy of minidl
                ours = ours or path.name.startswith("launchers made")
                if not ours and frame[1] != "??":
                    lines[place] = (path.name, int(frame[2]))
        return lines
