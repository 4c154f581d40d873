"""A kernel of a .cu file: found, compiled once for each device, launched.

    add3 = minidl.kernel("add3.cu", "add3")
    add3((n_blocks,), (256,), (out, a, b, c, n))   # CuPy's call form; the arrays decide the device

On a GPU: gpu.py; on the CPU: host/; with every access checked: checks/.
Test: tests/cuda/test_gpu.py, tests/cuda/host/test_compiler.py   Tutorial: tutorials/02_add3.py
"""

from __future__ import annotations

import functools
import inspect
import os
from sys import modules
from typing import TYPE_CHECKING

import numpy as np

from minidl import backend
from minidl.cuda.host.includes import Edited, KernelError, files, find

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike
    from typing import Any

ORDERS = {"ascending": 0, "descending": 1}


def kernel(path: str | PathLike[str], name: str | None = None, *,
           defines: Mapping[str, Any] | None = None, options: Sequence[str] = (),
           form: str = "auto", order: str = "ascending") -> Kernel:
    """The kernel `name` of a .cu file, ready to launch on NumPy or CuPy arrays.

    path:    a file of the project's kernels/ folder, or any .cu file.
    name:    may be left out if the file has one kernel; of a template 'scale<float, 4>'.
    defines: macros, {"T": "float"}.
    options: macros as options of a compiler, ("-DT=float",); all others are for NVRTC.
    form:    on the CPU: 'auto', 'flat' (a loop over the threads), 'fibre' (threads that can wait
             for each other) or 'check' (KernelError with a report if an access is wrong:
             checker.py).
    order:   in which the CPU runs threads and blocks: 'ascending', 'descending', or an int > 1,
             a seed to shuffle them. All but ascending are run in the fibre form.
             Sound kernels give the same bits in any order.

    Nothing is compiled before the first launch. If the file, or one that it includes, changes, a
    later launch compiles it again (within 20 ms of another launch it may run the old text).
    Errors: KernelError."""
    defines = dict(defines or {})
    rest = []
    for option in options:
        if option.startswith("-D"):
            key, _, value = option[2:].partition("=")
            defines[key] = value or "1"
        else:
            rest.append(option)
    return Kernel(find(path), name, defines, tuple(rest), form, order)


def is_watched():
    """Returns True under `minidl kernel run`, where every access of a launch is checked. A launch
    takes some hundred times as long there."""
    return inspect.unwrap(Kernel.__call__) is not _launch


class Kernel:
    """A kernel of a file, compiled for each device when it is first launched there."""

    def __init__(self, path, name, defines, options, form, order):
        from minidl.cuda.host import cpu

        if form not in cpu.FORMS:
            raise ValueError(f"form is one of {', '.join(cpu.FORMS)}; got {form!r}")
        if order not in ORDERS and not (type(order) is int and order > 1):
            raise ValueError("order is 'ascending', 'descending' or an int above 1, a seed; got "
                             f"{order!r}")
        self.order = ORDERS.get(order, order)
        if self.order and form == "flat":
            raise ValueError("the flat form knows one order; leave form out, or say form='fibre'")
        self.path, self.name, self.defines, self.options = path, name, defines, options
        self.form = "fibre" if self.order and form == "auto" else form
        self._cpu = self._gpu = self._ready = None

    def __call__(self, grid, block, args, *, shared_mem=0):
        """Launch on grid x block threads. args: arrays and numbers, in the order of the kernel's
        parameters. shared_mem: bytes of dynamic shared memory. On a GPU: on CuPy's current stream,
        without waiting."""
        on_gpu = self._gpu
        try:
            if on_gpu and args and type(args[0]) is on_gpu.array_type:  # mostly the result
                return on_gpu(grid, block, args, shared_mem)
            if "cupy" in modules and backend.xp_of(args, f"kernel {self.name}") is not np:
                return self.on_gpu(grid, block, args, shared_mem)
        except Edited:
            self._forget()
            return self.on_gpu(grid, block, args, shared_mem)
        if self.form == "check":  # in three orders of threads, unless one was asked for
            orders = {"orders": (self.order,)} if self.order else {}
            report = check(self, grid, block, args, shared_mem=shared_mem, **orders)
            if report.errors:
                raise KernelError(str(report))
            return
        try:
            (self._ready or self._first)(grid, block, args, shared_mem, self.order, _n_threads)
        except Edited:
            self._forget()
            self._first(grid, block, args, shared_mem, self.order, _n_threads)

    def _forget(self):
        """The file has changed: compile it again."""
        self._cpu = self._gpu = self._ready = None

    def _first(self, grid, block, args, shared_mem, order, threads):
        """A launch before the kernel has been tried: see selfcheck.py."""
        launch = self.on_cpu
        if launch.form == "flat" and not launch.tried:
            from minidl.cuda.host import selfcheck

            launch.tried = selfcheck.check(launch, grid, block, args, shared_mem)
        if launch.form == "fibre" and launch.shuffles:
            self._ready = self._shuffling
        elif launch.form == "fibre" or launch.tried:
            self._ready = launch.__call__  # as a method: Python calls it by its shortcut
        (self._ready or launch)(grid, block, args, shared_mem, order, threads)

    def _shuffling(self, grid, block, args, shared_mem, order, threads):
        """A launch of a kernel with warp shuffles. If a lane reads from one that takes no part, the
        check form says whether the result depends on that value; if not, the result is right."""
        before = [(a, a.copy()) for a in args if isinstance(a, np.ndarray) and a.flags.writeable]
        try:
            self._cpu(grid, block, args, shared_mem, order, threads)
        except KernelError as error:
            if "reads from lane" not in str(error):
                raise
            for a, values in before:
                a[...] = values
            judged = check(self, grid, block, args, shared_mem=shared_mem)
            if judged.errors:
                raise KernelError(str(judged)) from None

    @property
    def on_cpu(self):
        """The CpuKernel, compiled if need be."""
        if self._cpu is None:
            # most kernels that may run as fibres must: then that library serves both
            form = "auto" if self.form == "fibre" else self.form
            self._cpu = self._load(form)
            if self.form == "fibre" and self._cpu.form == "flat":
                self._cpu = self._load("fibre")
        return self._cpu

    def _load(self, form):
        defines = tuple(sorted(self.defines.items()))
        library = _library(self.path, defines, self.name, form, _stamp(self.path))
        return _choose(library.kernels, self.name, self.path)

    @property
    def on_gpu(self):
        """The kernel on CuPy's current device."""
        if self._gpu is None:
            from minidl.cuda import gpu

            self._gpu = gpu.GpuKernel(self.path, self.name, self.defines, self.options)
        return self._gpu

    def get_global(self, name):
        """A __device__ or __constant__ variable of the file, as CuPy's RawModule has it: on the CPU
        an array at the variable's own memory, to read and to write. The kernel must use it."""
        from minidl.cuda.host import variables

        found = _library_of(self).variables
        if name not in found:
            raise KernelError(f"{self.path}: no variable {name!r} that kernel {self.name!r} uses; "
                              f"it has: {', '.join(found) or 'none'}")
        return variables.array(found[name])

    def __repr__(self):
        return f"<kernel {self.name or '?'} of {self.path.name}>"


def _library_of(kernel):
    """The library whose variables a launch of the Kernel uses: the watched one's in form='check'
    and while `minidl kernel run` watches all."""
    if kernel.form == "check" or is_watched():
        from minidl.cuda.checks import checker

        return checker.library_of(kernel)
    kernel.on_cpu
    form = kernel.form if kernel.form == "flat" else "auto"
    if kernel.form == "fibre" and kernel.on_cpu is not kernel._load("auto"):
        form = "fibre"
    defines = tuple(sorted(kernel.defines.items()))
    return _library(kernel.path, defines, kernel.name, form, _stamp(kernel.path))


@functools.lru_cache(maxsize=256)
def _library(path, defines, name, form, stamp):
    from minidl.cuda.host import cpu

    library = cpu.load(path, dict(defines), name, form)
    for kernel in library.kernels.values():
        kernel.watch(files(path), stamp)
    return library


_launch = Kernel.__call__


def _stamp(path):
    """Changes when `path` or a file that it includes does: an edited kernel is compiled again in
    the same Python."""
    return files(path).stamp()


def only_one(names, path):
    """The name of the only kernel of a file."""
    if len(names) != 1:
        raise KernelError(f"{path} has several kernels; name one: {', '.join(names)}")
    return names[0]


def _choose(kernels, name, path):
    name = name or only_one(list(kernels), path)
    if name in kernels:
        return kernels[name]
    from minidl.cuda.host import cpu
    from minidl.cuda.host.includes import inline_includes
    from minidl.cuda.host.source import Source

    raise cpu.why_missing(Source(path, inline_includes(path)), name, alone=True)


def check(kernel, grid, block, args, **options):
    """The Report of races, stray accesses and traffic of a kernel: checker.check."""
    from minidl.cuda.checks import checker

    return checker.check(kernel, grid, block, args, **options)


def _default_threads():
    """OMP_NUM_THREADS, which `minidl run` and Slurm set per rank; else the processors this process
    may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return backend.n_cores()


_n_threads = _default_threads()


def n_threads():
    """How many CPU threads a large launch may use in this process."""
    return _n_threads


def set_threads(n):
    """CPU threads that a large launch may use in this process; returns the number before."""
    global _n_threads
    if n < 1:
        raise ValueError(f"set_threads needs at least 1, got {n}")
    before, _n_threads = _n_threads, int(n)
    return before
