"""The compiled side of the check form: a kernel whose loads and stores call functions, and the
library that has them (kernels/host/check.cpp) with its structs in ctypes.

    kernel.cu --g++ -fsanitize=thread,bounds,...--> object --linked without--> key.so
              calls __tsan_read4(p), ...            the compiler's library: ours has these functions

Test: tests/cuda/checks/test_check.py, test_check_idioms.py
"""

import ctypes
import functools
import os
import re
import tempfile

from minidl.cuda.checks import report
from minidl.cuda.host import compiler, cpu
from minidl.cuda.host.includes import KernelError, inline_includes
from minidl.cuda.host.scan import match_bracket, split_arguments

SANITIZE = "-fsanitize=thread,{bounds},alignment,integer-divide-by-zero"


class Finding(ctypes.Structure):  # this and the next three are laid out as in check.cpp
    _fields_ = [
        *((n, ctypes.c_int) for n in "kind fatal warning region size how other_how".split()),
        *((n, ctypes.c_uint) for n in "where other_where who other_who".split()),
        ("offset", ctypes.c_longlong), ("count", ctypes.c_ulonglong), ("text", ctypes.c_void_p)]


class Traffic(ctypes.Structure):
    _fields_ = [(n, ctypes.c_ulonglong) for n in vars(report.Traffic())]


class GivenRegion(ctypes.Structure):
    _fields_ = [
        *((n, ctypes.c_ulonglong) for n in "begin n_bytes".split()),
        *((n, ctypes.c_uint) for n in "granule const uninitialised unused".split())]


class Shared(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p),
                *((n, ctypes.c_int) for n in "element rows columns".split())]


@functools.cache
def hooks():
    """The library with the hooks, loaded so that every kernel's library finds it."""
    cpu.runtime()
    flags = ["-std=gnu++17", "-O2", "-fPIC", "-fvisibility=hidden", "-w"]
    library = compiler.load_host("check", flags, "check.cpp", "sanitizer.cpp")
    u64, pointer = ctypes.c_ulonglong, ctypes.c_void_p
    library.minidl_check_begin.argtypes = [pointer, ctypes.c_int, *[u64] * 6, pointer]
    library.minidl_check_findings.restype = ctypes.POINTER(Finding)
    library.minidl_check_traffic.restype = ctypes.POINTER(Traffic)
    library.minidl_check_shared_info.restype = ctypes.POINTER(Shared)
    library.minidl_check_region_bytes.restype = u64
    library.minidl_check_writer.argtypes = [ctypes.c_int, u64]
    library.minidl_check_writer.restype = ctypes.c_uint
    return library


def compile_check(path, defines, instance=""):
    """The cpu.Library of a file compiled for the check form, from the cache or now."""
    cxx = compiler.find_compiler()
    if cxx.kind == "zig":
        raise KernelError("the check form needs g++ or clang++; the compiler found is zig, which "
                          "has not been made to work with the hooks. Install one, `sudo apt "
                          "install g++`, or name it in MINIDL_CXX")
    # -O1 keeps every load and store of the text, and local variables out of memory
    bounds = "bounds" if cxx.kind == "gnu" else "array-bounds"
    flags = [f for f in cxx.flags if f not in ("-O3", "-fopenmp-simd")]
    flags += ["-O1", "-g", "-DMINIDL_CHECK", SANITIZE.format(bounds=bounds)]
    if cxx.kind == "clang":  # else `x[i] += 1` would count as a store alone
        flags += ["-mllvm", "-tsan-instrument-read-before-write=1"]
    text = inline_includes(path)
    key = compiler.key_of("check made", text, sorted(defines.items()), instance, *flags)
    file = compiler.cached(key)
    if file is None:
        code = _announce_shared(cpu.generate(path, text, defines, instance, "fibre"))
        with tempfile.TemporaryDirectory() as folder:
            # compiled and linked apart: linking with the flags would bring in their own runtime
            objects = os.path.join(folder, "kernel.o")
            source = ["-c", "-x", "c++", "-", "-o", objects]
            compiler.run([*flags, f"-I{compiler.HOST}", *source], code, str(path))
            file = compiler.build(key, [objects], describe=str(path))
    hooks()
    return cpu.Library(file)


# what cpu.generate makes of `extern __shared__ float s[];`
_DYNAMIC = re.compile(r"\bconst (\w+) = \([^()]*\)minidl_dynamic_shared\(\);")


def _announce_shared(code):
    """Put minidl_shared("s", s) behind every declaration of a __shared__ variable."""
    code = _DYNAMIC.sub(r'\g<0> minidl_check_dynamic("\1", sizeof(*\1));', code)
    out, at = [], 0
    for m in re.finditer(r"\b__shared__\b", code):
        end = _end_of_statement(code, m.end())
        written = split_arguments(code[m.end() : end])
        declared = [d.split("=")[0].split("{")[0] for d in written]
        names = [re.search(r"(\w+)\s*(\[[^\]]*\]\s*)*$", d)[1] for d in declared]
        calls = "".join(f' minidl_shared("{name}", {name});' for name in names)
        # An array of __half, a class, would get a flag of the compiler's, "is it made yet?", whose
        # reads are no accesses of the kernel. With an initialiser there is none, and no code.
        made = ",".join(d + " = {}" * (d == before) for d, before in zip(written, declared))
        out += [code[at : m.end()], made, ";", calls]
        at = end + 1
    return "".join([*out, code[at:]])


def _end_of_statement(code, at):
    while code[at] != ";":
        at = match_bracket(code, at) if code[at] in "([{" else at
        at += 1
    return at
