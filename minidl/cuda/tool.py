"""The commands `minidl kernel check` and `minidl kernel run`.

    minidl kernel check my.cu        compiles a file for the CPU and for GPUs, lists its kernels
    minidl kernel run my_test.py     runs a Python file with every launch in the check form

Test: tests/cuda/test_tool.py   Tutorial: tutorials/02_add3.py
"""

import math
import os
import runpy
import sys
import time
from collections import defaultdict
from pathlib import Path
from unittest import mock

import numpy as np

from minidl.cuda import Kernel, nvrtc
from minidl.cuda.checks import checker, hooks, occupancy
from minidl.cuda.checks import profile as profiles
from minidl.cuda.checks.sentences import compiler_finding
from minidl.cuda.host import compiler, cpu
from minidl.cuda.host.arguments import dims
from minidl.cuda.host.includes import KernelError, find, inline_includes
from minidl.cuda.host.source import Source
from minidl.text import Columns, word

FORMS = Columns(("kernel", "<24"), ("form", "<9"), ("parameters", "<0"), start="  ", gap=" ")
TRAFFIC = Columns(("kernel", "<20"), ("launches", ">9"), (" array", "<13"), ("bytes loaded", ">14"),
                  ("bytes stored", ">14"), ("atomics", ">9"), gap=" ")

SILENCE_S = 5  # after this many seconds without a printed line, `run` prints how many launches ran


def _short(path):
    """Returns the path relative to the current folder. If the file is not in this folder, returns
    the absolute path."""
    path, here = Path(path).resolve(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def check(path, defines=None, tr=str):
    """Compiles the file for the CPU and, if NVRTC is installed, for GPUs. Prints its kernels.
    Returns 0, or 1 if the file does not compile. Raises KernelError if the file has no kernel.

    defines: macros, a dict or (name, value) pairs. tr: a function that translates printed lines."""
    path, defines = find(path), dict(defines or {})
    source = Source(path, inline_includes(path), defines)
    if not source.kernels:
        raise KernelError(f"{path}: no __global__ function in this file")
    print(tr(f"{_short(path)}, for the CPU ({compiler.find_compiler()}):"))
    failed = not _prints(_cpu_table, path, source, defines, tr=tr)
    if missing := nvrtc.available():
        print("\n" + tr(f"for a GPU: not tried. {missing}"))
        return int(failed)
    print("\n" + tr("for a GPU (NVRTC):"))
    failed |= not _prints(lambda tr: nvrtc.table(nvrtc.check(path, defines), tr), tr=tr)
    return int(failed)


def _prints(table, *args, tr):
    """Prints the text that table(*args, tr) returns. If table raises KernelError, prints the
    error's text instead. Returns True if there was no error."""
    try:
        print(table(*args, tr))
    except KernelError as error:
        print(tr(f"  {error}"))
        return False
    return True


def _cpu_table(path, source, defines, tr):
    start = time.perf_counter()
    kernels = cpu.load(path, defines).kernels
    lines = [FORMS.head(tr)]
    for f in source.kernels:
        form, text = "template", " ".join(f.params.split())
        if f.name in kernels:
            form = kernels[f.name].form
        elif not f.template:
            form, text = "-", tr(str(cpu.why_missing(source, f.name, alone=True)))
        lines.append(FORMS.row(f.name, word(form, tr), text))
    lines.append(tr(f"  compiled and loaded in {time.perf_counter() - start:.2f} s"))
    for warning in _warnings(path, defines):
        found = compiler_finding(path, *warning)
        lines += [tr(f"  {found}"), tr(f"      -> {found.remedy}")]
    if kernels:
        lines += [tr("  a launch to try under `minidl kernel run`:"),
                  *(f"    {line}" for line in _launch(path, next(iter(kernels.values()))))]
    return "\n".join(lines)


def _warnings(path, defines):
    """Returns the compiler's warnings about a file, in the form of hooks.compiler_warnings()."""
    text = inline_includes(path)
    return cpu.generated(path, text, defines, None, "fibre", hooks.compiler_warnings)


def _launch(path, kernel):
    """Returns lines of Python that launch a kernel on 1,000 elements."""
    lines, args = ["import numpy as np", "from minidl import kernel"], []
    for p in kernel.signature.parameters:
        if p.has_struct:
            lines.append(f"{p.name} = np.zeros({1000 if p.kind == 'pointer' else ()}, {p.ctype})"
                         f"  # {p.ctype} = np.dtype([...], align=True), with the struct's members")
        elif p.kind == "pointer":
            dtype = np.dtype(p.dtype or "u1").name
            lines.append(f"{p.name} = np.ones({1000 * p.lanes}, np.{dtype})")
        args.append(p.name if p.kind != "scalar" else
                    "1000" if np.dtype(p.dtype).kind in "iu" else "1.0")
    shared = ", shared_mem=4 * 256" if kernel.signature.uses_dynamic_shared else ""
    lines.append(f'kernel("{path.name}", "{kernel.name}")(4, 256, ({", ".join(args)},){shared})')
    return lines


def _caller(depth):
    """Returns the place of a call as 'script.py:12'. Starts at the caller `depth` levels up, and
    goes further up to the first function outside of minidl."""
    frame = sys._getframe(depth)
    while frame.f_back and "/minidl/" in frame.f_code.co_filename.replace(os.sep, "/"):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _registers(kernel, name, gpu):
    """Returns how many registers a thread uses, as NVRTC reports. Returns None if NVRTC is not
    installed or does not compile the file."""
    if nvrtc.available():
        return None
    instances = (kernel.name,) if kernel.name and "<" in kernel.name else ()
    arch = max(occupancy.GPUS[gpu].arch, "sm_75")
    try:
        usages = nvrtc.check(kernel.path, kernel.defines, (arch,), instances)
    except KernelError:
        return None
    base = name.split("<")[0]
    return next((u.registers for u in usages if u.kernel.split(" ")[0] == base), None)


def run(path, arguments=(), profile=False, gpu="A100", tr=str):
    """Runs a Python file. Its launches on NumPy arrays run in the check form. Prints each finding
    once, and then the memory traffic. Returns the exit status: 1 if a kernel had an error, else the
    exit status of the file.

    arguments: the file's command line arguments.
    profile:   if True, also profiles the first launch of each kernel. Prints counts for each line
               (checks/profile.py), and how many blocks fit on an SM of the GPU named `gpu`.
    tr:        a function that translates printed lines.
    Raises KernelError if there is no such file, or if `gpu` is not known."""
    if not Path(path).is_file():
        raise KernelError(f"there is no file {path} in {os.getcwd()}")
    if Path(path).suffix in (".cu", ".cuh"):
        raise KernelError(f"{path} is a file of kernels: run a Python file that launches these "
                          f"kernels, or look at the kernels with `minidl kernel check {path}`")
    if gpu not in occupancy.GPUS:
        raise KernelError(f"--gpu {gpu}: wanted one of {', '.join(occupancy.GPUS)}")
    launches, traffic, told, failed = defaultdict(int), {}, set(), []
    last_word = time.monotonic()

    def say(line):
        nonlocal last_word
        last_word = time.monotonic()
        print(tr(line), flush=True)

    def watched(kernel, grid, block, args, *, shared_mem=0):
        if Path(kernel.path) not in told:
            told.add(Path(kernel.path))
            say(f"watch: kernels of {_short(kernel.path)}")
        report = checker.check(kernel, grid, block, args, shared_mem=shared_mem, profile=profile)
        if time.monotonic() - last_word > SILENCE_S:
            n = sum(launches.values()) + 1
            say(f"watch: {n} launches so far; the last kernel was {report.kernel}. Every access is "
                "checked, which takes time. Smaller arrays take less time.")
        if profile and not launches[report.kernel]:
            say(f"{report.kernel}, the first launch:")
            print(report.profile.text(tr) if report.profile else "")
            if report.profile:
                n, registers = math.prod(dims(block)), _registers(kernel, report.kernel, gpu)
                say(profiles.occupancy_line(report.profile, n, registers, gpu))
        launches[report.kernel] += 1
        table = traffic.setdefault(report.kernel, defaultdict(checker.Traffic))
        for name, t in report.ledger.items():
            table[name] += t
        failed.extend(report.errors)
        for f in report.findings:
            if str(f) not in told:
                told.add(str(f))
                say(str(f))
                say(f"    -> {f.remedy}")
                say(f"    launched by {_caller(2)}")

    status = 0
    folder = str(Path(path).resolve().parent)
    with (mock.patch.object(Kernel, "__call__", watched),
          mock.patch.object(sys, "argv", [str(path), *arguments]),
          mock.patch.object(sys, "path", [folder, *sys.path])):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if not launches:
        say(f"{path} launched no kernel on NumPy arrays, except by minidl.cuda.check.")
        return status
    print()
    print(TRAFFIC.head(tr))
    for name, n in launches.items():
        what = [name, f"{n:,}"]
        for array, t in traffic[name].items():
            numbers = (f"{k:,}" for k in (t.load_bytes, t.store_bytes, t.atomics))
            print(TRAFFIC.row(*what, f" {array}", *numbers))
            what = ["", ""]
    say(f"Errors: {len(failed):,}.")
    return 1 if failed else status
