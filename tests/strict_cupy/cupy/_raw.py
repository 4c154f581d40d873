"""RawModule over the project's own CPU runner of .cu files.

It writes the code into a file. Leading #define lines become `defines`. As in CUDA, a kernel must be
extern "C" or among the name expressions, or it is not found."""

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

import numpy as np
from cupy import _count, _memory
from cupy._array import check_device, ndarray

FOLDER = Path(os.environ.get("STRICT_CUPY_SOURCES",
                             Path(tempfile.gettempdir()) / f"strict_cupy_{os.getuid()}"))


class RawModule:
    """cupy.RawModule."""

    def __init__(self, *, code=None, path=None, options=(), backend="nvrtc",
                 translate_cucomplex=False, enable_cooperative_groups=False, name_expressions=None,
                 jitify=None):
        if code is None or type(options) is not tuple:
            raise TypeError("RawModule: code, and options as a tuple")
        self.code, self.options, self.name_expressions = code, options, name_expressions

    def get_function(self, name):
        return RawKernel(self.code, name, self.options, _names=self.name_expressions or ())


class RawKernel:
    """cupy.RawKernel. RawModule.get_function returns an object with the same call."""

    def __init__(self, code, name, options=(), backend="nvrtc", *, _names=()):
        from minidl import cuda

        self.name, self.max_dynamic_shared_size_bytes = name, 48 * 1024
        plain = name.split("<")[0]
        if name not in _names and not re.search(
                rf'extern\s+"C"[^;{{]*\b{re.escape(plain)}\s*\(', code):
            raise RuntimeError(f'CUDA_ERROR_NOT_FOUND: named symbol not found ({name} is neither '
                               'extern "C" nor among the name expressions)')
        defines, text = {}, code
        head = re.match(r'((?:#include <[^>]+>\n)*)((?:#define \w+ .*\n)*)#line 1 "[^"]*"\n', code)
        if head:
            defines = dict(line.split(" ", 2)[1:] for line in head[2].splitlines())
            text = code[head.end():]
        self._kernel = cuda.kernel(_file(text, options), name, defines=defines)
        record(code, options, _names, name)

    def __call__(self, grid, block, args, *, shared_mem=0):
        if type(grid) is not tuple or type(block) is not tuple:
            raise TypeError("Argument 'grid' has incorrect type (expected tuple)")
        block3, grid3 = (block + (1, 1))[:3], (grid + (1, 1))[:3]
        if not 0 < int(np.prod(block3)) <= 1024 or min(grid3) < 1 or max(grid3[1:]) > 65535:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")
        if shared_mem > self.max_dynamic_shared_size_bytes:
            raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument (shared memory)")
        on_cpu, host, arrays = self._kernel.on_cpu, [], []
        for a in args:
            if isinstance(a, ndarray):
                check_device(a)
                arrays.append((len(host), a))
                host.append(np.atleast_1d(a._a) if a.nbytes else None)
            elif a is None or isinstance(a, (np.generic, bool, int, float)):
                host.append(a.item() if isinstance(a, np.generic) else a)
            else:
                raise TypeError(f"Unsupported type {type(a)}")
        parameters = on_cpu.signature.parameters
        reads = [x for i, x in arrays if i < len(parameters) and parameters[i].const]
        _memory.on_stream(reads, [x for i, x in arrays if not any(x is r for r in reads)],
                          self.name)
        _count.launches(self.name)
        on_cpu(grid3, block3, tuple(host), shared_mem, self._kernel.order)


def record(code, options, names, launched):
    """Writes the code that reached CuPy into the folder named by STRICT_CUPY_KERNELS, for
    compile_kernels.py."""
    if folder := os.environ.get("STRICT_CUPY_KERNELS"):
        made = {"code": code, "options": list(options), "name_expressions": list(names) or None}
        name = hashlib.sha256(json.dumps(made).encode()).hexdigest()[:16]
        file = Path(folder).resolve() / f"{name}.json"
        before = json.loads(file.read_text())["launched"] if file.is_file() else []
        if launched not in before:
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, json.dumps({**made, "launched": [*before, launched]}))


def _file(text, options):
    """Writes the source to a file, with the included files in the same folder."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    folders = [Path(o[2:]) for o in options if o.startswith("-I")]
    for name in re.findall(r'#include "([^"]+)"', text):
        for folder in folders[::-1]:
            if folder.name != "kernels" and (folder / name).is_file():
                _write(FOLDER / name, (folder / name).read_text())
    file = FOLDER / f"k-{hashlib.sha256(text.encode()).hexdigest()[:16]}.cu"
    if not file.is_file():
        _write(file, text)
    return file


def _write(file, text):
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(text)
    part.replace(file)
