"""The check form: runs a kernel on the CPU with every load and store watched, and says what a GPU would do wrong with it.

    report = check("reduce.cu", 4, 256, (out, x, n))
    print(report)          reduce.cu:14: data race: thread 3 reads s[19], thread 19 wrote it at line 14 ...

1. The file is compiled with the hooks of the compiler's sanitizers, which are ours (kernels/host/check.cpp, shadow.h).
2. The arrays are copied into one arena, apart from each other, so that a stray index falls between them.
3. The kernel runs with threads and blocks in ascending, descending and shuffled order. Sound kernels give the same bits.
4. What was loaded and stored is counted for each array: the kernel ledger.

Not seen: two accesses ordered by other means than __syncthreads, __syncwarp and atomics on the very element, such as a
block that waits for another by a ticket and __threadfence(): a warning, not an error. So are two writes of the same value.
Test: tests/cuda/test_check.py   Tutorial: tutorials/02_add3.py, tutorials/03_kernel_tour.py
"""

import ctypes
import functools
import math
import os
import re
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from minidl.cuda import compiler, cpu
from minidl.cuda.arguments import dims
from minidl.cuda.source import KernelError, _split, inline_includes, match_bracket

ORDERS = ("ascending", "descending", 7)  # 7: a seed to shuffle with
SANITIZE = "-fsanitize=thread,{bounds},alignment,integer-divide-by-zero"
GUARD = 64 * 1024  # bytes between arrays, at least; as many as the array has, if that is more
PAGE = 4096

# (name, remedy) in the order of `Kind` in kernels/host/check.cpp
KINDS = [
    ("out of bounds", "Compare the index with the size before the access: `if (i < n)`, with < and not <=."),
    ("out of bounds", "The array is too small for this index: look at its size and at what the index can become."),
    ("misaligned access", "A vector of 2 or 4 elements must begin at a multiple of its own size: let the index of the first "
                          "element be a multiple of the vector's length, or load element by element."),
    ("read of unwritten shared memory", "Shared memory begins with garbage: write every element that is read later, "
                                        "in this block, before the barrier."),
    ("read of uninitialised output", "The array is an output and begins with garbage: write it before it is read or added to."),
    ("data race", "Put a {barrier} between the two accesses."),
    ("race between blocks", "Blocks run in any order: let each touch elements of its own, use atomics, or make two launches."),
    ("double write", "Only one thread should write an element: look at the index and its stride, or use atomics."),
    ("write to a const array", "The parameter is const, so callers and the compiler rely on it: write to another array, or "
                               "drop the const."),
    ("division by zero", "A GPU would go on with a meaningless number: test the divisor first."),
    ("output not written", "Is the grid large enough, and the guard not too strict?"),
]  # fmt: skip
(OUT_OF_BOUNDS, BAD_INDEX, MISALIGNED, UNWRITTEN, UNINITIALISED, RACE, BLOCK_RACE, DOUBLE_WRITE, CONST_WRITE, DIVISION,
 NOT_ALL_WRITTEN) = range(len(KINDS))  # fmt: skip
READ, WRITE, ATOMIC, ATOMIC_READ = range(4)  # `How` there
# What the fibre engine finds, by words of its sentence.
ENGINE = [
    ("divergent barrier", "divergent barrier", "Move __syncthreads() out of the branch, and let no thread return before it."),
    ("divergent warp call", "divergent warp call", "All lanes of the mask must be at the same call: move it out of the branch."),
    ("which does not name it", "wrong mask", "The mask must name every lane that makes the call, and no other: 0xffffffff "
                                             "if all 32 do."),
    ("which the mask does not name", "wrong mask", "A lane can only read from lanes of the mask: widen it, or change the source."),
    ("which has returned", "shuffle from an exited lane", "Keep all lanes of the warp until the last shuffle; guard the loads "
                                                          "and stores instead."),
    ("does not exist", "shuffle from an exited lane", "Launch whole warps, a multiple of 32 threads, and guard the loads."),
    ("deadlock", "deadlock", "Some lanes of the mask never make this call: name only those that do, or move it out of the branch."),
    ("repeated without end", "endless wait", "The thread that would end the wait never runs."),
    ("assertion failed", "assertion failed", "The kernel's own assert() says so."),
]  # fmt: skip
SHARED_REMEDY = "The __shared__ array is too small for this index: look at its size and at what the index can become."
DYNAMIC_REMEDY = "Pass the bytes that the kernel uses, such as shared_mem=4 * threads, or look at the index."
ORDER_KIND = "result depends on thread order"


@dataclass
class Finding:
    """One thing that is wrong, at one place. kind: its name. warning: may be sound. count: how often it was seen."""

    kind: str
    text: str
    remedy: str
    file: str = ""
    line: int = 0
    warning: bool = False
    block: tuple | None = None
    threads: tuple = ()
    count: int = 1

    def __str__(self):
        place = f"{self.file}:{self.line}: " if self.line else ""
        return f"{place}{'warning: ' * self.warning}{self.kind}: {self.text}"


@dataclass
class Traffic:
    """What the threads of one launch did with one array: how many accesses, how many bytes."""

    loads: int = 0
    load_bytes: int = 0
    stores: int = 0
    store_bytes: int = 0
    atomics: int = 0
    atomic_bytes: int = 0

    def __add__(self, other):
        return Traffic(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


@dataclass
class Report:
    """findings: what is wrong. ledger: {array parameter: Traffic}. shared: {__shared__ variable: Traffic}."""

    kernel: str
    path: Path
    findings: list = field(default_factory=list)
    ledger: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)

    @property
    def errors(self):
        return [f for f in self.findings if not f.warning]

    @property
    def warnings(self):
        return [f for f in self.findings if f.warning]

    @property
    def bytes_read(self):
        """Bytes loaded from all arrays; an atomic loads and stores."""
        return sum(t.load_bytes + t.atomic_bytes for t in self.ledger.values())

    @property
    def bytes_written(self):
        return sum(t.store_bytes + t.atomic_bytes for t in self.ledger.values())

    def __str__(self):
        head = f"kernel {self.kernel} of {self.path.name}: {_count(len(self.errors), 'error')}"
        if self.warnings:
            head += f", {_count(len(self.warnings), 'warning')}"
        lines = [head]
        for f in [*self.errors, *self.warnings]:
            lines += [f"  {f}", f"      -> {f.remedy}"]
        return "\n".join([*lines, *self.table()])

    def table(self):
        """The kernel ledger as lines of text."""
        rows = [*self.ledger.items(), *((f"{name} (shared)", t) for name, t in self.shared.items())]
        head = f"  {'array':<24}{'loads':>12}{'bytes':>14}{'stores':>12}{'bytes':>14}{'atomics':>12}"
        return [head] + [
            f"  {name:<24}{t.loads:>12,}{t.load_bytes:>14,}{t.stores:>12,}{t.store_bytes:>14,}{t.atomics:>12,}"
            for name, t in rows
        ]


def check(kernel, grid, block, args, *, name=None, defines=None, shared_mem=0, outputs=(), reachable=(), orders=ORDERS):
    """Run `kernel` (a Kernel, or a .cu file with `name`) on grid x block threads under watch; a Report.

    args:      NumPy arrays and numbers, as for a launch; the arrays hold its results afterwards, unless it had to be stopped.
    outputs:   names of array parameters that hold nothing yet: reading one before it is written is an error, and so is an
               element that is never written.
    reachable: arrays that the kernel reaches through a table of addresses.
    orders:    of threads and blocks; one run for each.
    Errors of the launch itself are raised as by a launch: KernelError, TypeError, ValueError."""
    from minidl.cuda import Kernel, _choose
    from minidl.cuda import kernel as load

    if not isinstance(kernel, Kernel):
        kernel = load(kernel, name, defines=defines)
    library = _library(kernel.path, tuple(sorted(kernel.defines.items())), kernel._instance, _stamp(kernel.path))
    with _lock:
        return _Run(_choose(library.kernels, kernel.name, kernel.path), kernel.path, library.file).report(
            grid, block, args, shared_mem, outputs, reachable, orders
        )


def launch(kernel, grid, block, args, shared_mem, orders):
    """A launch in the check form: KernelError with the report if there is an error in it."""
    report = check(kernel, grid, block, args, shared_mem=shared_mem, orders=orders)
    if report.errors:
        raise KernelError(str(report))


# ---- one check ----

_lock = threading.Lock()  # check.cpp watches one launch at a time


class _Run:
    """A kernel under watch. regions: memory of the arrays, arguments that overlap together in one."""

    def __init__(self, cpu_kernel, path, file):
        self.kernel, self.path, self.file, self.hooks = cpu_kernel, path, file, hooks()

    def report(self, grid, block, args, shared_mem, outputs, reachable, orders):
        signature = self.kernel.signature
        signature.pack(grid, block, args, shared_mem, 0, 1)  # raises what a launch would
        self.grid, self.block = dims(grid), dims(block)
        if math.prod(self.grid) * math.prod(self.block) >= 2**31:
            raise KernelError(f"kernel {self.kernel.name}: the check form counts up to 2^31 threads; launch fewer blocks")
        names = [p.name for p in signature.parameters]
        if unknown := set(outputs) - set(names):
            raise ValueError(f"outputs: no parameter {', '.join(sorted(unknown))}; the kernel has {', '.join(names)}")
        self._lay_out(signature.parameters, args, outputs, reachable)
        report = Report(self.kernel.name, Path(self.path))
        first = None
        for order in orders:
            numbers = {"ascending": 0, "descending": 1}
            stopped, raw = self._run_once(grid, block, shared_mem, numbers.get(order, order))
            self._collect(report, stopped, raw)
            results = [r.memory.copy() for r in self.regions if not r.const]
            if first is None:
                self._count(report)
                first, first_order, n_atomics = results, order, sum(t.atomics for t in [*report.ledger.values(), *report.shared.values()])
            if stopped:
                break
            self._compare(report, first, results, first_order, order, n_atomics)
        if not stopped:
            for r, result in zip([r for r in self.regions if not r.const], first, strict=True):
                r.write_back(result)
        report.findings.sort(key=lambda f: (f.warning, f.kind == ORDER_KIND))
        return report

    def _lay_out(self, parameters, args, outputs, reachable):
        """Decide where in the arena every array lies, and what is passed in its place."""
        spans = [_Part(p.name, a, p.const, p.name in outputs, p.text.count("*") > 1)
                 for p, a in zip(parameters, args, strict=True) if p.kind == "pointer" and a is not None]  # fmt: skip
        spans += [_Part(f"reachable[{k}]", a, False, False, False) for k, a in enumerate(reachable)]
        self.regions = []
        for part in sorted(spans, key=lambda s: (s.begin, -s.n_bytes)):
            last = self.regions[-1] if self.regions else None
            if last and part.begin < last.end:
                last.add(part)
            else:
                self.regions.append(_Region(part))
        offset = GUARD
        for r in self.regions:
            # as far from a multiple of 256 as in the user's own allocation: on a GPU those begin at one
            r.offset = offset + r.parts[0].misalignment
            offset = -(-(r.offset + r.n_bytes + max(GUARD, r.n_bytes)) // PAGE) * PAGE
        self.arena = np.empty(offset + 2 * PAGE, np.uint8)
        start = -self.arena.ctypes.data % PAGE
        for r in self.regions:
            r.memory = self.arena[start + r.offset : start + r.offset + r.n_bytes]
        self.parameters, self.args = parameters, args

    def _passed(self):
        """The arguments, arrays replaced by their copies; tables of addresses point to copies."""
        by_name = {part.name: r.view(part) for r in self.regions for part in r.parts}
        passed = []
        for p, a in zip(self.parameters, self.args, strict=True):
            if p.kind == "pointer" and a is not None:
                a = by_name[p.name]
                if p.text.count("*") > 1:
                    a.flat = [self._moved(int(address), p.name) for address in a.flat]
            passed.append(a)
        return passed

    def _moved(self, address, table):
        """Where the copy lies of what the user's table of addresses points to."""
        for r in self.regions:
            if r.begin <= address < max(r.end, r.begin + 1):
                return r.memory.ctypes.data + address - r.begin
        if address:
            raise KernelError(
                f"kernel {self.kernel.name}: {table!r} is a table of addresses, and one is of an array that the check form does "
                "not know. Name the arrays: minidl.cuda.check(kernel, grid, block, args, reachable=[...])"
            )
        return 0

    def _run_once(self, grid, block, shared_mem, order):
        for r in self.regions:
            r.fill()
        packed = self.kernel.signature.pack(grid, block, self._passed(), shared_mem, order, 1)
        launch = ctypes.create_string_buffer(packed, len(packed))
        given = (_GivenRegion * len(self.regions))(
            *(_GivenRegion(r.memory.ctypes.data, r.n_bytes, r.granule, r.const, r.uninitialised, 0) for r in self.regions)
        )
        code = ctypes.cast(self.kernel._launch, ctypes.c_void_p)
        self.hooks.minidl_check_begin(
            given, len(given), self.arena.ctypes.data, self.arena.nbytes, ctypes.addressof(launch), len(packed), shared_mem,
            math.prod(self.grid), code,
        )  # fmt: skip
        stopped = self.kernel._launch(launch)
        n = self.hooks.minidl_check_end(0 if stopped else 1)
        self.stop_text = cpu.runtime().minidl_error().decode() if stopped else ""
        return stopped, [_copy(f) for f in self.hooks.minidl_check_findings()[:n]]

    # -- from numbers to sentences

    def _collect(self, report, stopped, raw):
        """Add what one run found to the report, one finding for each place."""
        lines = self._lines({w for f in raw for w in (f.where, f.other_where) if w})
        found = [self._finding(f, lines) for f in raw]
        if stopped and not any(f.fatal for f in raw):
            found.append(_engine_finding(self.stop_text))
        for f in found:
            same = [g for g in report.findings if (g.kind, g.file, g.line) == (f.kind, f.file, f.line)]
            if not same:
                report.findings.append(f)
            elif same[0].warning and not f.warning:
                report.findings[report.findings.index(same[0])] = f

    def _finding(self, f, lines):
        kind, remedy = KINDS[f.kind]
        file, line = lines.get(f.where, ("", 0))
        block, thread = self._place(f.who)
        who = f"thread {_tuple(thread, self.block)}"
        if math.prod(self.grid) > 1:
            who += f" of block {_tuple(block, self.grid)}"
        where = self._element(f.region, f.offset, f.size) if f.region >= 0 else ""
        verb = {READ: "reads", WRITE: "writes", ATOMIC: "atomically changes", ATOMIC_READ: "atomically reads"}[f.how]
        threads, warning = (thread,), bool(f.warning)
        if f.kind == OUT_OF_BOUNDS:
            if 0 <= f.region < len(self.regions) and abs(f.offset) > 2 * (self.regions[f.region].n_bytes + GUARD):
                text = f"{who} {verb} an address far from all arrays, {abs(f.offset):,} bytes away from the nearest"
            else:
                text = f"{who} {verb} {where or f'address {f.offset:#x}'}, {self._size(f.region, f.offset)}"
            if f.region >= len(self.regions):
                remedy = SHARED_REMEDY if self._shared_info[f.region].name else DYNAMIC_REMEDY
            if f.count > 1:
                text += f" (and {_count(f.count - 1, 'more access', 'more accesses')} from this line)"
        elif f.kind == BAD_INDEX:
            text = f"{who} uses index {f.offset} of a {ctypes.string_at(f.text).decode().strip(chr(39))}"
        elif f.kind == MISALIGNED:
            what = re.sub(r"\b(const|struct) ", "", ctypes.string_at(f.text).decode().strip("'"))
            text = f"{who} uses {where or f'address {f.offset:#x}'} as a {what}, whose address must be a multiple of {f.size}"
        elif f.kind in (UNWRITTEN, UNINITIALISED):
            text = f"{who} reads {where}, which no thread {'of its block ' if f.kind == UNWRITTEN else ''}has written"
        elif f.kind in (RACE, BLOCK_RACE, DOUBLE_WRITE):
            text, remedy, threads = self._race(f, lines, who, where, verb, remedy)
        elif f.kind == CONST_WRITE:
            text = f"{who} writes {where}"
        elif f.kind == DIVISION:
            text = f"{who} divides an integer by zero"
        elif f.kind == NOT_ALL_WRITTEN:
            text = f"{_count(f.count, 'element')} of {self.regions[f.region].parts[0].name} never written, the first is {where}"
            return Finding(kind, text, remedy, self.path.name)
        return Finding(kind, text, remedy, file, line, warning, block, threads, f.count)

    def _race(self, f, lines, who, where, verb, remedy):
        thread = self._place(f.who)[1]
        other_block, other = self._place(f.other_who)
        past = {READ: "read", WRITE: "wrote", ATOMIC: "atomically changed", ATOMIC_READ: "atomically read"}[f.other_how]
        line = lines.get(f.other_where, ("", 0))[1]
        at = f" at line {line}" if line else ""
        threads = (thread, other)
        if f.kind == RACE:
            text = f"{who} {verb} {where}, thread {_tuple(other, self.block)} {past} it{at}, no barrier between"
            warps = {_linear(t, self.block) // 32 for t in threads}
            remedy = remedy.format(barrier="__syncthreads()" if len(warps) > 1 else "__syncwarp() or __syncthreads()")
            if ATOMIC in (f.how, f.other_how):
                remedy += " An atomic orders nothing but other atomics."
            elif f.region < len(self.regions):
                remedy = remedy.replace("accesses.", "accesses, or, where several threads add to one element, use atomicAdd.")
        else:
            other_who = f"thread {_tuple(other, self.block)} of block {_tuple(other_block, self.grid)}"
            text = f"{who} {verb} {where}, {other_who} {past} it{at}"
        if f.warning == 1:
            text += "; both write the same value"
        if f.warning == 2:
            text += "; sound only if __threadfence() and an atomic see to the order, which cannot be checked"
        return text, remedy, threads

    def _place(self, who):
        """(block, thread) from `who`, 1 + the number of a thread in the grid."""
        n = math.prod(self.block)
        return _coordinates((who - 1) // n, self.grid), _coordinates((who - 1) % n, self.block)

    def _element(self, region, offset, size):
        """'x[1000]', 'tile[3][32]'."""
        if region < len(self.regions):
            return self.regions[region].element(offset)
        info = self._shared_info[region]
        if not info.name:
            return f"dynamic shared memory [{offset // max(size, 1)}]" + f" (in units of {size} bytes)" * (size > 1)
        name, index = info.name.decode(), offset // info.element
        n_bytes = self.hooks.minidl_check_region_bytes(region)
        if not 0 <= offset < n_bytes or info.columns == 0:
            return f"{name}[{index}]" if info.columns else name
        row, column = divmod(index, info.columns)
        if info.rows == 0:
            return f"{name}[{column}]"
        page, row = divmod(row, info.rows)
        n_pages = n_bytes // (info.element * info.rows * info.columns)
        return f"{name}{f'[{page}]' * (n_pages > 1)}[{row}][{column}]"

    def _size(self, region, offset):
        """What is known about the array beside which an access fell."""
        if region < 0:
            return "a NULL pointer" if offset < PAGE else "which is in no array"
        if region < len(self.regions):
            part = self.regions[region].part_at(offset)
            return f"but {part.name} has {_count(part.size, 'element')}"
        n_bytes = self.hooks.minidl_check_region_bytes(region)
        info = self._shared_info[region]
        if not info.name:
            return f"but the launch gave shared_mem={n_bytes} bytes"
        return f"but {info.name.decode()} has {_count(n_bytes // info.element, 'element')}"

    @property
    def _shared_info(self):
        return self.hooks.minidl_check_shared_info()

    def _count(self, report):
        """Fill the report's ledger from the hooks' counts."""
        traffic = self.hooks.minidl_check_traffic()
        names = [p.name for p in self.parameters]
        given = sorted(  # as the parameters stand, not as the arrays lie
            range(len(self.regions)),
            key=lambda i: min((names.index(p.name) for p in self.regions[i].parts if p.name in names), default=len(names) + i),
        )
        for i in [*given, *range(len(given), self.hooks.minidl_check_regions())]:
            values = Traffic(*(getattr(traffic[i], name) for name, _ in _Traffic._fields_))
            if i < len(self.regions):
                report.ledger["=".join(p.name for p in self.regions[i].parts)] = values
            else:
                name = self._shared_info[i].name.decode() or "dynamic"
                report.shared[name] = report.shared.get(name, Traffic()) + values

    def _compare(self, report, first, results, first_order, order, n_atomics):
        """A finding if two orders of threads gave different bits."""
        regions = [(i, r) for i, r in enumerate(self.regions) if not r.const]
        for (i, r), a, b in zip(regions, first, results, strict=True):
            different = np.flatnonzero(a != b)
            if not len(different) or any(f.kind == ORDER_KIND for f in report.findings):
                continue
            offset = int(different[0])
            part = r.part_at(offset)
            x, y = part.value(a, offset - part.offset), part.value(b, offset - part.offset)
            atomic = ctypes.c_int()
            where = self.hooks.minidl_check_writer(i, offset, ctypes.byref(atomic))
            file, line = self._lines({where}).get(where, ("", 0)) if where else ("", 0)
            place = np.unravel_index((offset - part.offset) // part.itemsize, part.shape) if part.shape else ()
            row = f"row {place[0]}" if len(place) > 1 else r.element(offset)
            text = (
                f"first difference {row}{f', store line {line}' * (line > 0)}: {part.name}[{', '.join(map(str, place))}] "
                f"is {x!s} in {_order(first_order)} order, {y!s} in {_order(order)} order"
            )
            # sums of floats by atomics are rounded in the order in which they come
            rounding = n_atomics > 0 and part.dtype.kind == "f" and np.allclose(part.all(a), part.all(b), rtol=1e-3, atol=1e-5)
            remedy = (
                "Atomics add floats in any order, so the last digits differ: fine if that is meant."
                if rounding
                else "Look for a missing barrier, or for what several threads write."
            )
            report.findings.append(
                Finding(ORDER_KIND, text, remedy, file, line, rounding)
            )

    def _lines(self, offsets):
        """{offset in the library: (file name, line)} of the student's own line, through inlined functions."""
        if not offsets:
            return {}
        tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
        if tool is None:
            raise KernelError("the check form needs addr2line to name lines; install binutils, which g++ brings with it")
        wanted = sorted(offsets)
        # a return address is behind its call: one byte before it is inside
        command = [tool, "-e", str(self.file), "-i", "-a", *(hex(o - 1) for o in wanted)]
        output = subprocess.run(command, capture_output=True, text=True).stdout
        lines, at = {}, iter(wanted)
        for text in output.splitlines():
            if text.startswith("0x"):
                current = next(at)
                continue
            found = re.match(r"(.*):(\d+)", text)
            host = found and (Path(found[1]).parent == compiler.HOST or found[1].startswith("launchers"))
            if found and not host and found[1] != "??" and current not in lines:
                lines[current] = (os.path.basename(found[1]), int(found[2]))
        return lines


class _Part:
    """One array argument: where it lies in the user's memory."""

    def __init__(self, name, array, const, uninitialised, is_table):
        self.name, self.array, self.const, self.uninitialised, self.is_table = name, array, const, uninitialised, is_table
        self.begin, self.n_bytes, self.offset = array.ctypes.data, array.nbytes, 0
        self.itemsize, self.size, self.shape, self.dtype = array.itemsize, array.size, array.shape, array.dtype
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        self.misalignment = (self.begin - owner.ctypes.data) % 256

    def value(self, memory, offset):
        at = self.offset + offset // self.itemsize * self.itemsize
        return memory[at : at + self.itemsize].view(self.dtype)[0]

    def all(self, memory):
        return memory[self.offset : self.offset + self.n_bytes].copy().view(self.dtype)


class _Region:
    """Memory of one array, or of several that overlap."""

    def __init__(self, part):
        self.parts, self.begin, self.end = [part], part.begin, part.begin + part.n_bytes

    def add(self, part):
        part.offset = part.begin - self.begin
        self.parts.append(part)
        self.end = max(self.end, part.begin + part.n_bytes)

    @property
    def n_bytes(self):
        return self.end - self.begin

    @property
    def const(self):
        return all(p.const for p in self.parts)

    @property
    def uninitialised(self):
        return all(p.uninitialised for p in self.parts)

    @property
    def granule(self):
        size = min(p.itemsize for p in self.parts)
        fits = size in (1, 2, 4, 8) and all(p.offset % size == 0 for p in self.parts) and self.n_bytes % size == 0
        return size if fits else 1

    def view(self, part):
        return self.memory[part.offset : part.offset + part.n_bytes].view(part.dtype).reshape(part.shape)

    def fill(self):
        if self.uninitialised:
            self.memory[...] = 0xFF  # NaN in every float type
        else:
            for p in self.parts:
                self.view(p)[...] = p.array

    def write_back(self, memory):
        for p in self.parts:
            if not p.const and not p.is_table:
                p.array[...] = p.all(memory).reshape(p.shape)

    def part_at(self, offset):
        inside = [p for p in self.parts if p.offset <= offset < p.offset + p.n_bytes]
        return inside[0] if inside else self.parts[0]

    def element(self, offset):
        part = self.part_at(offset)
        return f"{part.name}[{(offset - part.offset) // part.itemsize}]"


def _engine_finding(text):
    """The fibre engine's sentence as a Finding."""
    found = re.match(r"block \((\d+), (\d+), (\d+)\): (.*)", text, re.S)
    block, text = (tuple(int(found[i]) for i in (1, 2, 3)), found[4]) if found else (None, text)
    kind, remedy = next(((k, r) for words, k, r in ENGINE if words in text), ("stopped", "See the message."))
    at = re.search(r"line (\d+) of ([^\s:;,]+?)[.,:]?(?=[\s,:]|$)", text)
    text = re.sub(r"^(divergent barrier|deadlock|divergent warp call|line \d+ of [^:]*): ", "", text)
    file, line = (at[2], int(at[1])) if at else ("", 0)
    return Finding(kind, text, remedy, file, line, block=block)


def _coordinates(i, size):
    return i % size[0], i // size[0] % size[1], i // size[0] // size[1]


def _linear(place, size):
    return place[0] + size[0] * (place[1] + size[1] * place[2])


def _tuple(place, size):
    """'3' where only x counts, else '(3, 1)'."""
    dimensions = max((d + 1 for d in range(3) if size[d] > 1), default=1)
    return str(place[0]) if dimensions == 1 else str(tuple(place[:dimensions]))


def _count(n, word, words=None):
    return f"{n:,} {word if n == 1 else words or word + 's'}"


def _order(order):
    return order if isinstance(order, str) else "shuffled"


def _copy(structure):
    return type(structure).from_buffer_copy(structure)


# ---- the compiled side ----


class _Finding(ctypes.Structure):  # Finding in check.cpp
    _fields_ = [(n, ctypes.c_int) for n in "kind fatal warning region size how other_how".split()]
    _fields_ += [(n, ctypes.c_uint) for n in "where other_where who other_who".split()]
    _fields_ += [("offset", ctypes.c_longlong), ("count", ctypes.c_ulonglong), ("text", ctypes.c_void_p)]


class _Traffic(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in vars(Traffic())]


class _GivenRegion(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_ulonglong), ("n_bytes", ctypes.c_ulonglong)]
    _fields_ += [(n, ctypes.c_uint) for n in "granule const uninitialised unused".split()]


class _Shared(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p)] + [(n, ctypes.c_int) for n in "element rows columns".split()]


@functools.cache
def hooks():
    """The library with the hooks, loaded so that every kernel's library finds it."""
    cpu.runtime()
    flags = ["-std=gnu++17", "-O2", "-fPIC", "-fvisibility=hidden", "-w"]
    key = compiler.key_of("check", *flags)
    file = compiler.cached(key) or compiler.build(key, [*flags, str(compiler.HOST / "check.cpp")], describe="minidl's check runtime")
    library = ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
    u64, pointer = ctypes.c_ulonglong, ctypes.c_void_p
    library.minidl_check_begin.argtypes = [pointer, ctypes.c_int, *[u64] * 6, pointer]
    library.minidl_check_findings.restype = ctypes.POINTER(_Finding)
    library.minidl_check_traffic.restype = ctypes.POINTER(_Traffic)
    library.minidl_check_shared_info.restype = ctypes.POINTER(_Shared)
    library.minidl_check_region_bytes.argtypes, library.minidl_check_region_bytes.restype = [ctypes.c_int], u64
    library.minidl_check_writer.argtypes, library.minidl_check_writer.restype = [ctypes.c_int, u64, pointer], ctypes.c_uint
    return library


def _stamp(path):
    from minidl.cuda import _stamp

    return _stamp(path)


@functools.lru_cache(maxsize=256)
def _library(path, defines, instance, stamp):
    from minidl.cuda import KERNELS

    return compile_check(path, dict(defines), (KERNELS,), instance or "")


def compile_check(path, defines, folders, instance=""):
    """The cpu.Library of a file compiled for the check form, from the cache or now."""
    cxx = compiler.find_compiler()
    if cxx.kind == "zig":
        raise KernelError(
            "the check form needs g++ or clang++; the compiler found is zig, which cannot be linked with the hooks. "
            "Install one, `sudo apt install g++`, or name it in MINIDL_CXX"
        )
    # -O1: every load and store of the text is still there; local variables are not in memory
    flags = [f for f in cxx.flags if f not in ("-O3", "-fopenmp-simd")]
    flags += ["-O1", "-g", "-DMINIDL_CHECK", SANITIZE.format(bounds="bounds" if cxx.kind == "gnu" else "array-bounds")]
    if cxx.kind == "clang":  # else `x[i] += 1` would count as a store alone
        flags += ["-mllvm", "-tsan-instrument-read-before-write=1"]
    text, _ = inline_includes(path, folders)
    key = compiler.key_of("check", text, sorted(defines.items()), instance, *flags)
    file = compiler.cached(key)
    if file is None:
        code = _announce_shared(cpu.generate(path, text, defines, instance, "fibre"))
        with tempfile.TemporaryDirectory() as folder:
            # compiled and linked apart: linking with the flags would bring the sanitizers' own runtime
            objects = os.path.join(folder, "kernel.o")
            compiler.run([*flags, f"-I{compiler.HOST}", "-c", "-x", "c++", "-", "-o", objects], code, str(path))
            file = compiler.build(key, [objects], describe=str(path))
    hooks()
    library = cpu.Library(file, path)
    library.file = file
    return library


def _announce_shared(code):
    """Put minidl_shared("s", s) behind every declaration of a __shared__ variable."""
    out, at = [], 0
    for m in re.finditer(r"\b__shared__\b", code):
        if m.start() < at:
            continue
        end = _end_of_statement(code, m.end())
        names = [re.search(r"(\w+)\s*((\[[^\]]*\]\s*)*)(=.*|\{.*)?$", d.strip(), re.S) for d in _split(code[m.end() : end])]
        calls = "".join(f' minidl_shared("{n[1]}", {n[1]});' for n in names if n)
        out += [code[at : end + 1], calls]
        at = end + 1
    return "".join([*out, code[at:]])


def _end_of_statement(code, at):
    while code[at] != ";":
        at = match_bracket(code, at) if code[at] in "([{" else at
        at += 1
    return at
