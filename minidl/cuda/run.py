"""Launches a kernel of a .cu file. Finds the file and compiles it once for each device.

    add3 = minidl.kernel("add3.cu", "add3")
    add3((n_blocks,), (256,), (out, a, b, c, n))   # as in CuPy. The arrays decide the device

gpu.py runs kernels on a GPU, and host/ runs kernels on the CPU. checks/ runs kernels on the CPU and
checks every access.
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
    """Returns the kernel `name` of a .cu file, a Kernel to launch on NumPy or CuPy arrays.

    path:    a file in the project's kernels/ folder, or any .cu file.
    name:    the kernel's name. It may be left out if the file has only one kernel. For a template,
             give an instance: 'scale<float, 4>'.
    defines: macros, such as {"T": "float"}.
    options: the compiler's options. "-DT=float" defines a macro. All other options are passed to
             NVRTC only.
    form:    how the CPU runs the kernel. 'flat' is a loop over the threads. 'fibre' has threads
             that can wait for each other. 'auto' chooses one of the two. 'check' checks each access
             (checker.py). If an access is wrong, the launch raises KernelError with a report.
    order:   the order in which the CPU runs threads and blocks. It is 'ascending', 'descending', or
             an int > 1, which is the seed of a random order. All orders except 'ascending' need the
             fibre form. A correct kernel gives the same bits in any order.

    The kernel is compiled at its first launch. If the file or an included file changes, a later
    launch compiles the kernel again. (A launch within 20 ms after another launch may still run the
    old text.) Raises KernelError if there is no such file."""
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
    """Returns True under `minidl kernel run`, where every access of a launch is checked. Then a
    launch takes some hundred times as long as usual."""
    return inspect.unwrap(Kernel.__call__) is not _launch


class Kernel:
    """A kernel of a file. Its first launch on a device compiles it for that device."""

    def __init__(self, path, name, defines, options, form, order):
        from minidl.cuda.host import cpu

        if form not in cpu.FORMS:
            raise ValueError(f"form must be one of {', '.join(cpu.FORMS)}; got {form!r}")
        if order not in ORDERS and not (type(order) is int and order > 1):
            raise ValueError("order must be 'ascending', 'descending' or a seed (an int > 1); got "
                             f"{order!r}")
        self.order = ORDERS.get(order, order)
        if self.order and form == "flat":
            raise ValueError("form='flat' runs threads only in ascending order; omit form, or pass "
                             "form='fibre'")
        self.path, self.name, self.defines, self.options = path, name, defines, options
        self.form = "fibre" if self.order and form == "auto" else form
        self._cpu = self._gpu = self._ready = None

    def __call__(self, grid, block, args, *, shared_mem=0):
        """Launches the kernel with grid x block threads. On a GPU the launch is on CuPy's current
        stream, and the host does not wait.

        grid, block: an int or a tuple of up to three ints.
        args:        arrays and numbers, in the order of the kernel's parameters.
        shared_mem:  bytes of dynamic shared memory.
        Raises KernelError if the kernel does not compile or cannot run. Raises TypeError or
        ValueError if an argument does not fit."""
        on_gpu = self._gpu
        try:
            # In most calls args[0] is the result. Its type is a fast test for a GPU.
            if on_gpu and args and type(args[0]) is on_gpu.array_type:
                return on_gpu(grid, block, args, shared_mem)
            if "cupy" in modules and backend.xp_of(args, f"kernel {self.name}") is not np:
                return self.on_gpu(grid, block, args, shared_mem)
        except Edited:
            self._forget()
            return self.on_gpu(grid, block, args, shared_mem)
        if self.form == "check":  # runs three orders of threads, unless the caller gave an order
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
        """Forgets the compiled kernel, because its file has changed."""
        self._cpu = self._gpu = self._ready = None

    def _first(self, grid, block, args, shared_mem, order, threads):
        """Launches the kernel on the CPU for the first time. A kernel in the flat form is first
        tried on copies of the arrays (selfcheck.py)."""
        launch = self.on_cpu
        if launch.form == "flat" and not launch.tried:
            from minidl.cuda.host import selfcheck

            launch.tried = selfcheck.check(launch, grid, block, args, shared_mem)
        if launch.form == "fibre" and launch.shuffles:
            self._ready = self._shuffling
        elif launch.form == "fibre" or launch.tried:
            self._ready = launch.__call__  # Python calls a bound method faster than an object
        (self._ready or launch)(grid, block, args, shared_mem, order, threads)

    def _shuffling(self, grid, block, args, shared_mem, order, threads):
        """Launches a kernel with warp shuffles on the CPU. If a lane reads from a lane that takes
        no part in the shuffle, the value is undefined. Then the kernel runs again in the check
        form, which finds out whether the result depends on this value. Raises KernelError if the
        result depends on the value. Else the result is right."""
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
        """Returns the CpuKernel. It is compiled on first use."""
        if self._cpu is None:
            # If a user wants the fibre form, the kernel usually has no flat form. Then 'auto' means
            # the fibre form, and one library is enough.
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
        """Returns the GpuKernel for CuPy's current device. It is compiled on first use."""
        if self._gpu is None:
            from minidl.cuda import gpu

            self._gpu = gpu.GpuKernel(self.path, self.name, self.defines, self.options)
        return self._gpu

    def get_global(self, name):
        """Returns a __device__ or __constant__ variable of the file: a NumPy array in the
        variable's own memory, to read and to write. This works only for kernels on the CPU. For a
        GPU, CuPy's RawModule has a method of the same name. Raises KernelError if the kernel uses
        no such variable."""
        from minidl.cuda.host import variables

        found = _library_of(self).variables
        if name not in found:
            raise KernelError(f"{self.path}: kernel {self.name!r} uses no variable {name!r}; it "
                              f"uses: {', '.join(found) or 'none'}")
        return variables.array(found[name])

    def __repr__(self):
        return f"<kernel {self.name or '?'} of {self.path.name}>"


def _library_of(kernel):
    """Returns the compiled library that holds the variables for a launch of this Kernel. With
    form='check' and under `minidl kernel run`, this is the library that checks accesses."""
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
    """Returns a value that changes when the file or an included file changes. So an edited kernel
    is compiled again in the same Python process."""
    return files(path).stamp()


def only_one(names, path):
    """Returns the only name in `names`, the names of a file's kernels. Raises KernelError if there
    is not exactly one."""
    if len(names) != 1:
        raise KernelError(f"{path} has several kernels; pass the name of one kernel: "
                          f"{', '.join(names)}")
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
    """Launches a kernel in the check form. Returns a Report of its races, its accesses outside of
    an array, and its memory traffic. options: as in checker.check."""
    from minidl.cuda.checks import checker

    return checker.check(kernel, grid, block, args, **options)


def _default_threads():
    """Returns OMP_NUM_THREADS, which `minidl run` and Slurm set for each rank. If it is not set,
    returns the number of processors that this process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return backend.n_cores()


_n_threads = _default_threads()


def n_threads():
    """Returns how many CPU threads a large launch may use in this process."""
    return _n_threads


def set_threads(n):
    """Sets how many CPU threads a large launch may use in this process. Returns the old number.
    Raises ValueError if n is below 1."""
    global _n_threads
    if n < 1:
        raise ValueError(f"set_threads wants at least 1 thread, got {n}")
    before, _n_threads = _n_threads, int(n)
    return before
