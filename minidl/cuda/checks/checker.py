"""Runs a kernel on the CPU and checks every load and store. Reports errors, such as races between
threads.

    report = check("reduce.cu", 4, 256, (out, x, n))
    print(report)      reduce.cu:14: data race: thread 3 reads s[19], thread 19 wrote it at line ...

1. hooks.py compiles the file with calls to the compiler's sanitizers. Functions of minidl replace
   the functions of the sanitizers. check.cpp (in kernels/host/) finds the array of each access and
   counts the access. shadow.h records which threads used each element last.
2. arena.py copies the arrays, with guards between them.
3. The kernel runs three times, with threads and blocks in ascending, descending and shuffled order.
   It runs in a process of its own (kernels/host/session.cpp), so a crash does not end Python. A
   correct kernel gives the same bits in each order.
4. sentences.py makes sentences from the findings. report.py makes the text of the report. The
   report has these sentences and the memory traffic.

Two threads have a race if they access the same element, one of them writes, and nothing decides
which access is first. Two atomic operations never race. The order is decided by __syncthreads,
__syncwarp, and fences with atomics (kernels/host/order.h). If the two threads write the same value,
the finding is only a warning.
Test: tests/cuda/checks/test_check*.py   Tutorial: tutorials/02_add3.py
"""

import ctypes
import functools
import math
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np

from minidl.cuda.checks import hooks
from minidl.cuda.checks import profile as profiles
from minidl.cuda.checks.lines import NO_LINES, lines_of, symbolizer
from minidl.cuda.checks.report import Finding, Report, Traffic
from minidl.cuda.checks.sentences import Shared, Words, compiler_finding, engine_finding
from minidl.cuda.host.arena import Arena
from minidl.cuda.host.arguments import dims
from minidl.cuda.host.includes import KernelError
from minidl.cuda.run import ORDERS as NUMBERS
from minidl.cuda.run import Kernel, _choose, _stamp
from minidl.cuda.run import kernel as load

ORDERS = ("ascending", "descending", 7)  # 7 is the seed of a random order
ORDER_MATTERS = "result depends on thread order"

_lock = threading.Lock()  # check.cpp can watch only one launch at a time


def check(kernel, grid, block, args, *, name=None, defines=None, shared_mem=0, outputs=(),
          reachable=(), orders=ORDERS, profile=False):
    """Runs a kernel on grid x block threads and checks every access. Returns a Report.

    kernel:    a Kernel, or the path of a .cu file. With a path, `name` and `defines` choose the
               kernel.
    args:      NumPy arrays and numbers, as for a launch. Afterwards the arrays hold the results,
               unless the kernel had to be stopped.
    outputs:   names of array parameters whose arrays have no values yet. If the kernel reads an
               element of such an array before it has written this element, that is an error. An
               element that is never written is an error, too.
    reachable: arrays that the kernel reaches through a table of addresses.
    orders:    the orders of threads in which the kernel runs, such as 'descending'. The kernel runs
               once in each order. For all possible orders, see `order` of cuda.kernel.
    profile:   if True, Report.profile also has counts of requests, bank conflicts and divergence
               (profile.py).
    Raises the errors of a launch: KernelError, TypeError, ValueError."""
    if not isinstance(kernel, Kernel):
        kernel = load(kernel, name, defines=defines)
    path, defines = kernel.path, tuple(sorted(kernel.defines.items()))
    instance = kernel.name if kernel.name and "<" in kernel.name else ""
    stamp, counted = _stamp(path), None
    with _lock:
        for count in (True, False) if profile else (False,):
            library = _library(path, defines, instance, count, stamp)
            watched = _choose(library.kernels, kernel.name, path)
            run = _Run(watched, path, library, grid, block, args, shared_mem, outputs, reachable)
            try:
                if count:  # this library has no checks, because a check adds branches to the count
                    counted = run.profile()
                else:
                    report = run.report(orders)
            finally:
                run.close()
    report.profile = counted
    return report


def library_of(kernel):
    """Returns the compiled library that a launch of this Kernel uses in the check form."""
    instance = kernel.name if kernel.name and "<" in kernel.name else ""
    return _library(kernel.path, tuple(sorted(kernel.defines.items())), instance, False,
                    _stamp(kernel.path))


@functools.lru_cache(maxsize=256)
def _library(path, defines, instance, profile, stamp):
    return hooks.compile_check(path, dict(defines), instance, profile)


def _limit_s():
    """Returns a limit in seconds of processor time. If no block ends within this time, the check
    reports an endless loop. The environment variable MINIDL_WATCHDOG changes the limit."""
    return float(os.environ.get("MINIDL_WATCHDOG") or 5)


def _wait(pid):
    """Waits for the child process. Returns its exit status. If a signal ended the process, returns
    minus the number of the signal. Ctrl-C ends the child process."""
    if pid < 0:
        raise KernelError("the check form could not start a process (fork failed): is there "
                          "enough memory? Are there too many processes?")
    pause = 1e-4
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(pause)
            pause = min(1.5 * pause, 0.02)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _ended(status):
    """Returns the Finding for a child process that ended without a result."""
    how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return Finding("stopped", f"the process that ran the kernel ended {how}",
                   "SIGKILL: was there not enough memory? Launch fewer blocks.")


class _Run:
    """One launch in the check form. The kernel runs in several orders of threads."""

    def __init__(self, kernel, path, library, grid, block, args, shared_mem, outputs, reachable):
        self.kernel, self.path, self.library, self.hooks = kernel, path, library, hooks.hooks()
        self.shared_mem = shared_mem
        parameters = kernel.signature.parameters
        kernel.signature.pack(grid, block, args, shared_mem, 0, 1)  # raises if an argument is wrong
        self.grid, self.block = dims(grid), dims(block)
        if math.prod(self.grid) * math.prod(self.block) >= 2**31:
            raise KernelError(f"kernel {kernel.name}: in the check form a launch must have fewer "
                              "than 2^31 threads; launch fewer blocks")
        names = [p.name for p in parameters if p.kind == "pointer"]
        if unknown := set(outputs) - set(names):
            raise ValueError(f"outputs: kernel {kernel.name} has no array "
                             f"{', '.join(sorted(unknown))}; it has {', '.join(names)}")
        self.shared = []  # the pieces of memory that `close` releases
        self.arena = Arena(kernel.name, parameters, args, outputs, reachable,
                           lambda n_bytes: self._memory(n_bytes, fresh=True))

    def _memory(self, n_bytes, fresh=False):
        self.shared.append(hooks.SharedMemory(n_bytes, fresh))
        return self.shared[-1].array()

    def close(self):
        for memory in self.shared:
            memory.close()

    def report(self, orders):
        report = Report(self.kernel.name, Path(self.path))
        variables = list(self.library.variables.values())
        size = sum(r.n_bytes for r in self.arena.writeable)
        results = self._memory(size * len(orders) + 1)
        after = self._memory(sum(v.n_bytes for v in variables) + 1)
        outcomes = (hooks.Outcome * len(orders)).from_buffer(
            self._memory(ctypes.sizeof(hooks.Outcome) * len(orders)))
        for warning in self._compiler_warnings():
            report.add(compiler_finding(self.path, *warning))
        status = self._child(orders, results, after, outcomes, variables)
        done = [o for o in outcomes if o.finished]
        for o in done:
            self._collect(report, o)
        if done:
            report.ledger, report.shared = self._ledger(outcomes[0])
        if len(done) < len(orders) and not (done and done[-1].stopped):
            report.add(_ended(status))
        elif not done[-1].stopped:
            self._judge(report, done, results, size, orders)
            at = 0
            for r in self.arena.writeable:
                r.write_back(results[at : at + r.n_bytes])
                at += r.n_bytes
            at = 0
            for v in variables:
                if not v.is_const:
                    ctypes.memmove(v.begin, after[at:].ctypes.data, v.n_bytes)
                at += v.n_bytes
        report.findings.sort(key=lambda f: (f.warning, f.order))
        if not all(f.line for f in report.findings) and symbolizer() is None:
            report.note = NO_LINES
        return report

    def profile(self):
        """Runs the kernel once, with its threads in ascending order. Returns the run's
        profile.Profile, or None if the kernel had to be stopped. The user's arrays do not
        change."""
        raw = profiles.Raw.from_buffer(self._memory(ctypes.sizeof(profiles.Raw)))
        variables = list(self.library.variables.values())
        results = self._memory(sum(r.n_bytes for r in self.arena.writeable) + 1)
        after = self._memory(sum(v.n_bytes for v in variables) + 1)
        outcomes = (hooks.Outcome * 1).from_buffer(self._memory(ctypes.sizeof(hooks.Outcome)))
        self._child(("ascending",), results, after, outcomes, variables, raw)
        outcome = outcomes[0]
        if not outcome.finished or outcome.stopped:
            return None
        if symbolizer() is None:  # a profile has a row for each line, so it needs the line numbers
            raise KernelError(NO_LINES)
        lines = lines_of(self.library.file, {r.place for r in raw.rows[: raw.n_rows]})
        n, own = len(self.arena.regions), self._variables(outcome)

        def name_of(i):
            return self.arena.regions[i].name if i < n else own[i - n].name

        shared = [(v.name, v.n_bytes) for v in own if v.is_shared]
        return profiles.make(raw, lines, name_of, shared)

    def _child(self, orders, results, after, outcomes, variables, raw=None):
        """Runs the kernel in all orders, in a child process. Returns the exit status of this
        process."""
        for region in self.arena.regions:
            region.fill()
        packed = self.kernel.signature.pack(self.grid, self.block, self.arena.passed(),
                                            self.shared_mem, 0, 1)
        launch = self.kernel.signature.with_structs(packed)
        given = [(r.memory.ctypes.data, r.n_bytes, r.granule, r.const, r.uninitialised)
                 for r in self.arena.regions]
        # check.cpp reads the names of variables from this memory, so `keep` must stay alive.
        keep = self.keep = [
            (hooks.GivenRegion * (len(given) + 1))(*given),
            (hooks.DeviceVariable * (len(variables) + 1))(
                *((v.begin, v.n_bytes, v.name, v.element, v.rows, v.columns, v.is_const)
                  for v in variables)),
            (ctypes.c_int * len(orders))(*(NUMBERS.get(o, o) for o in orders))]
        pointers = [*(ctypes.addressof(k) for k in keep), ctypes.addressof(outcomes),
                    results.ctypes.data, after.ctypes.data, ctypes.addressof(launch),
                    ctypes.cast(self.kernel.launcher, ctypes.c_void_p).value]
        about = hooks.CheckLaunch(
            *pointers, len(launch), self.arena.memory.ctypes.data, self.arena.memory.nbytes,
            self.shared_mem, math.prod(self.grid), math.prod(self.block),
            raw and ctypes.addressof(raw), _limit_s(), len(given), len(variables), len(orders), 0)
        return _wait(self.hooks.minidl_check_start(ctypes.byref(about)))

    def _compiler_warnings(self):
        """Returns the compiler's warnings about code that this kernel can run."""
        name = self.kernel.name.split("<")[0]
        return [warning for warning, kernels in self.library.warnings if name in kernels]

    def _collect(self, report, outcome):
        """Adds the findings of one run (one order of threads) to the report."""
        raw = outcome.findings[: outcome.n_findings]
        places = {w for f in raw for w in (f.where, f.other_where) if w}
        calls = outcome.calls[: outcome.n_calls]
        lines = lines_of(self.library.file, places | set(calls))
        words = Words(self.grid, self.block, self.arena.regions, self._variables(outcome), lines,
                      Path(self.path), calls)
        for f in raw:
            report.add(words.finding(f))
        if outcome.stopped and not any(f.fatal for f in raw):
            report.add(engine_finding(outcome.sentence.decode()))

    def _variables(self, outcome):
        """Returns [Shared]: the __shared__ and __device__ variables that this run used."""
        n = len(self.arena.regions)
        return [Shared(v.name.decode(), v.element, v.rows, v.columns, outcome.region_bytes[i],
                       bool(v.is_shared))
                for i, v in enumerate(outcome.variables[: outcome.n_regions]) if i >= n]

    def _ledger(self, outcome):
        """Returns two dicts {name: Traffic} of the run. The first dict has the arrays and the
        __device__ variables. The second dict has the __shared__ variables."""
        counted = [Traffic(*(getattr(t, name) for name in vars(Traffic())))
                   for t in outcome.traffic[: outcome.n_regions]]
        arrays = {self.arena.regions[i].name: counted[i] for i in self.arena.in_order()}
        own = {}
        for variable, traffic in zip(self._variables(outcome), counted[len(arrays) :],
                                     strict=True):
            if variable.is_shared:
                own[variable.name] = own.get(variable.name, Traffic()) + traffic
            elif traffic != Traffic():
                arrays[variable.name] = traffic
        return arrays, own

    def _judge(self, report, outcomes, results, size, orders):
        """Compares the results of the runs in different orders. Adds a finding to the report if the
        results differ."""
        notes = [n.value.decode() for n in outcomes[0].notes[: outcomes[0].n_notes]]
        k = next((k for k, o in enumerate(outcomes) if k and o.differs_in >= 0), None)
        if notes and (k is not None or len(outcomes) == 1):
            for note in notes:  # the result depends on a shuffle from a lane that provided no value
                report.add(engine_finding(note))
            return
        if k is None:
            return
        outcome, order, offset = outcomes[k], orders[k], outcomes[k].differs_at
        region, at = self.arena.regions[outcome.differs_in], 0
        for r in self.arena.writeable:
            if r is region:
                break
            at += r.n_bytes
        first = results[at : at + region.n_bytes]
        second = results[k * size + at :][: region.n_bytes]
        part = region.part_at(offset)
        index, one, other = part.index(offset), part.of(first), part.of(second)
        first_order, order = (o if o in NUMBERS else "shuffled" for o in (orders[0], order))
        where = outcome.differs_where
        file, line = lines_of(self.library.file, {where}).get(where, ("", 0)) if where else ("", 0)
        place = np.unravel_index(index, part.array.shape)
        row = f"row {place[0]}" if len(place) > 1 else region.element(offset)
        text = (f"first difference {row}{f', store line {line}' * (line > 0)}: "
                f"{part.name}[{', '.join(map(str, place))}] is {one[index]} in {first_order} "
                f"order, {other[index]} in {order} order")
        remedy = "Look for a missing barrier, or for what several threads write."
        atomics = any(t.atomics for t in [*report.ledger.values(), *report.shared.values()])
        warning = False
        if atomics and not report.errors:
            with np.errstate(all="ignore"):
                rounding = one.dtype.kind == "f" and np.allclose(one, other, 1e-3, 1e-5)
            same = np.array_equal(np.sort(one), np.sort(other))
            warning = rounding or same or one.dtype.kind in "iu"
            if rounding:
                remedy = ("Atomics add floats in any order, so the last digits can differ. This is "
                          "right if your program does not need these digits.")
            elif same:
                text += "; the elements are the same, in another order"
                remedy = ("An atomic gives each thread its place, so places depend on which thread "
                          "comes first. This is right if any order is right.")
            elif warning:
                remedy = ("No race was found, so atomics decide which thread comes first. This is "
                          "right if each of these results is right.")
        report.add(Finding(ORDER_MATTERS, text, remedy, file, line, bool(warning)))
