"""Compiles a kernel for the check form: its loads and stores call functions of minidl.

These functions are in kernels/host/check.cpp. This file also declares the structs of check.cpp,
with ctypes.

    kernel.cu --g++ -fsanitize=thread,bounds,...--> object file --link--> key.so
              calls __tsan_read4(p), ...            without the compiler's own sanitizer library:
                                                    minidl's library has these functions

Test: tests/cuda/checks/test_check.py, test_check_idioms.py
"""

import ctypes
import functools
import json
import os
import re
import tempfile
from pathlib import Path

import numpy as np

from minidl.cuda.checks import report
from minidl.cuda.checks.lines import keep_lines
from minidl.cuda.host import compiler, cpu, shared
from minidl.cuda.host.includes import KernelError, inline_includes
from minidl.cuda.host.scan import blank_out, functions, match_bracket
from minidl.cuda.host.source import Source

SANITIZE = ("-fsanitize=thread,{bounds},alignment,object-size,integer-divide-by-zero,"
            "shift-exponent")
MAX_FINDINGS, MAX_REGIONS, MAX_NOTES = 200, 192, 4  # as in kernels/host/session.h
INT, UINT, U64, POINTER = ctypes.c_int, ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_void_p


def _fields(c_type, names):
    return [(name, c_type) for name in names.split()]


# The structs of this file have the same layout as in session.h and session.cpp.
class Finding(ctypes.Structure):
    _fields_ = [
        *_fields(INT, "kind fatal warning region size how other_how atomics"),
        *_fields(UINT, "where other_where who other_who"),
        ("offset", ctypes.c_longlong), ("count", U64), ("text", POINTER)]


class Traffic(ctypes.Structure):
    _fields_ = _fields(U64, " ".join(vars(report.Traffic())))


class GivenRegion(ctypes.Structure):
    _fields_ = [*_fields(U64, "begin n_bytes"),
                *_fields(UINT, "granule const uninitialised unused")]


class Variable(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), *_fields(INT, "element rows columns is_shared")]


class DeviceVariable(ctypes.Structure):
    _fields_ = [*_fields(U64, "begin n_bytes"), ("name", ctypes.c_char_p),
                *_fields(INT, "element rows columns is_const")]


class Outcome(ctypes.Structure):
    _fields_ = [
        *_fields(INT, "finished stopped n_findings n_regions n_notes differs_in"),
        ("differs_where", UINT), ("n_calls", INT), ("calls", UINT * 8), ("differs_at", U64),
        ("sentence", ctypes.c_char * 2048), ("notes", (ctypes.c_char * 512) * MAX_NOTES),
        ("findings", Finding * MAX_FINDINGS), ("variables", Variable * MAX_REGIONS),
        ("region_bytes", U64 * MAX_REGIONS), ("traffic", Traffic * MAX_REGIONS)]


class CheckLaunch(ctypes.Structure):
    _fields_ = [
        *_fields(POINTER, "given variables orders outcomes results device_after packed launch"),
        *_fields(U64, "packed_bytes arena arena_bytes dynamic_bytes n_blocks block_threads"),
        ("profile", POINTER), ("limit_seconds", ctypes.c_double),
        *_fields(INT, "n_given n_variables n_orders unused")]


@functools.cache
def hooks():
    """Loads the library with the checking functions, and returns it. The libraries of kernels can
    call these functions."""
    cpu.runtime()
    flags = compiler.find_compiler().runtime_flags
    library = compiler.load_host("check", flags, "check.cpp", "session.cpp", "locals.cpp",
                                 "profile.cpp", "sanitizer.cpp")
    library.minidl_check_start.argtypes = [POINTER]
    library.minidl_check_map.argtypes = [U64, INT]
    library.minidl_check_map.restype = POINTER
    library.minidl_check_unmap.argtypes = [POINTER, U64, INT]
    return library


class SharedMemory:
    """Memory that this process shares with the child process of a check. It is filled with zeros.
    fresh: if True, the memory is at an address that was not used before."""

    def __init__(self, n_bytes, fresh=False):
        self.n_bytes, self.fresh = n_bytes, fresh
        self.address = hooks().minidl_check_map(n_bytes, fresh)
        if not self.address:
            raise KernelError(f"no memory for a check: wanted {n_bytes:,} bytes. Use smaller "
                              "arrays")

    def array(self):
        return np.frombuffer((ctypes.c_uint8 * self.n_bytes).from_address(self.address), np.uint8)

    def close(self):
        hooks().minidl_check_unmap(self.address, self.n_bytes, self.fresh)


def compile_check(path, defines, instance="", profile=False):
    """Returns the cpu.Library of a file for the check form, from the cache if possible. Else
    compiles the file.

    instance: the instance of a template, such as 'scale<float, 4>'. profile: if True, each branch
    also calls a function of minidl. But then the library does not check bounds or arithmetic, and
    has no warnings.
    The library's attribute `warnings` is a list of the compiler's warnings. Each element is a pair.
    The first part is (file, line, option, text). The second part is a list with the names of the
    kernels that can run this line."""
    cxx = compiler.find_compiler()
    # With -O1 the compiler keeps every load and store of the kernel's text. It still puts local
    # variables into registers.
    bounds = "bounds" if cxx.kind == "gnu" else "array-bounds"
    flags = [f for f in cxx.flags if f not in ("-O3", "-fopenmp-simd")]
    sanitize = "-fsanitize=thread" if profile else SANITIZE.format(bounds=bounds)
    flags += [*compiler.CAREFUL, "-O1", "-g", "-DMINIDL_CHECK", sanitize]
    # Without -fno-sanitize=undefined, zig adds checks of its own.
    no_checks = ["-fno-sanitize=undefined"] if cxx.kind == "zig" else []
    if cxx.kind == "zig" and not profile:  # zig reads only `thread` from a list of sanitizers
        checks = sanitize.partition(",")[2]
        flags += ["-Xclang", f"-fsanitize={checks}", "-Xclang", f"-fsanitize-recover={checks}"]
    if cxx.kind == "gnu":
        # With -fstack-reuse=none and -fno-lifetime-dse, the compiler does not reuse the memory of a
        # variable whose lifetime is over (kernels/host/locals.cpp).
        flags += ["--param", "tsan-distinguish-volatile=1", "-fstack-reuse=none",
                  "-fno-lifetime-dse"]
    else:  # without read-before-write, clang records only the store of `x[i] += 1`, not its load
        flags += ["-mllvm", "-tsan-instrument-read-before-write=1",
                  "-mllvm", "-tsan-distinguish-volatile=1", "-mllvm", "-no-stack-coloring"]
    if profile:
        flags.append("-fsanitize-coverage=trace-pc,trace-cmp")
    text = inline_includes(path)
    key = compiler.key_of("check", text, sorted(defines.items()), instance, *flags,
                          Path(__file__).read_text(), *cpu.generator())
    def build(plain):
        code = _announce_shared(plain)
        with tempfile.TemporaryDirectory() as folder:
            # Compiles and links in two commands. The link command must not have the flags of the
            # sanitizer, because these flags add the compiler's own runtime.
            objects = os.path.join(folder, "kernel.o")
            source = ["-c", "-x", "c++", "-", "-o", objects]
            command = [*flags, f"-I{compiler.HOST}", *source]
            for kinds in (_UNSET, _ARRAY, _NUMBER), (_ARRAY, _NUMBER), (_ARRAY,), ():
                watched = _watch_unset(code) if _UNSET in kinds else code
                try:
                    compiler.run(command, _watch_locals(watched, kinds), str(path))
                    break
                except KernelError:  # for example, a goto jumps over a declaration
                    if not kinds:
                        raise
            source = Source(path, plain)
            warnings = [(w, sorted(source.kernels_at([w[:2]])))
                        for w in ([] if profile else compiler_warnings(plain))]
            file = compiler.build(key, [objects, *cxx.no_library, *no_checks], describe=str(path))
            keep_lines(file)
            compiler.keep(file.with_suffix(".json"), json.dumps(warnings))
        return file

    file = compiler.cached(key) or cpu.generated(path, text, defines, instance, "fibre", build)
    hooks()
    library = cpu.Library(file)
    library.warnings = json.loads(compiler.kept(file.with_suffix(".json")) or "[]")
    return library


WARNINGS = ("uninitialized maybe-uninitialized return-local-addr dangling-pointer "
            "infinite-recursion shift-count-overflow shift-count-negative div-by-zero "
            "array-bounds").split()
CLANGS = {"conditional-uninitialized": "maybe-uninitialized", "division-by-zero": "div-by-zero",
          "sometimes-uninitialized": "maybe-uninitialized",
          "return-stack-address": "return-local-addr"}  # clang's names for the same warnings


def compiler_warnings(code):
    """Returns the compiler's warnings about a kernel's C++: [(file, line, option, text)]."""
    cxx = compiler.find_compiler()
    flags = [f for f in cxx.flags if f not in ("-w", "-O3")]
    options = [f"-W{name}" for name in (WARNINGS if cxx.kind == "gnu" else [*WARNINGS, *CLANGS])]
    command = [*flags, "-O2", *options, f"-I{compiler.HOST}", "-S", "-x", "c++", "-", "-o"]
    with tempfile.TemporaryDirectory() as folder:  # zig cannot write to /dev/null
        log = compiler.run([*command, os.path.join(folder, "listing.s")], code, messages=True)
    # clang's warning has the line of the branch. The note after the warning has the line of the
    # use. The note's line is taken.
    log = re.sub(r"^.*?: (warning: .*\[-Wsometimes-uninitialized\])\n(?:.*\n)*?"
                 r"(.*:\d+:\d+): note: uninitialized use.*", r"\2: \1", log, flags=re.M)
    found = re.findall(r"^(.+?):(\d+):\d+: warning: (.*) \[-W([\w-]+)=?\]", log, re.M)
    return [(Path(file).name, int(line), CLANGS.get(option, option), text)
            for file, line, text, option in found
            if option in {*WARNINGS, *CLANGS} and Path(file).parts[-3:-1] != ("kernels", "host")
            and "minidl" not in Path(file).name]


# Patterns for the declaration of an array, of a number, and of numbers without values. (?<=[;{}])
# means that a statement begins here.
_ARRAY = re.compile(
    r"(?<=[;{}])(\s*)"
    r"((?:(?:volatile|unsigned|signed|long|short)\s+)*[A-Za-z_][\w:]*(?:<[^;{}()]*>)?)\s+"
    r"(\w+)\s*((?:\[[^\[\];]+\]\s*)+)(=\s*\{|;)")
_NUMBER = re.compile(
    r"(?<=[;{}])(\s*)((?:(?:unsigned|signed|long|short)\s+)*"
    r"(?:float|double|int|unsigned|char|short|long|bool))\s+(\w+)()\s*(=[^;{}]*;|;)")
_UNSET = re.compile(  # such as `float s, t;`
    r"(?<=[;{}])(\s*)((?:(?:unsigned|signed|long|short)\s+)*[A-Za-z_]\w*)\s+"
    r"(\w+(?:\s*,\s*\w+)*)\s*;")
_NO_TYPE = set("return else case goto delete new using typedef static extern constexpr const "
               "struct throw do __shared__ union class enum auto operator".split())


def _watch_unset(code):
    """Puts guards around numbers that are declared without a value, and that a thread may read
    before they have a value. Returns the new code."""
    blank = blank_out(code)
    out, at = [], 0
    for f in functions(blank)[0]:
        for m in _UNSET.finditer(blank, f.body[0] - 1, f.body[1]):
            names, rest = re.findall(r"\w+", m[3]), blank[m.end() : f.body[1]]
            watched = [name for name in names if _may_stay_unset(rest, name)]
            if not watched or _NO_TYPE & set(m[2].split()):
                continue
            before = blank[f.body[0] : m.start()]
            inner = ", true" * (before.count("{") > before.count("}"))
            new = " ".join(_between_guards(m[2], inner, name) if name in watched
                           else f"{m[2]} {name};" for name in names)
            out += [code[at : m.end(1)], new, "\n" * code[m.end(1) : m.end()].count("\n")]
            at = m.end()
    return "".join([*out, code[at:]])


def _between_guards(c_type, inner, name, values=""):
    return (f"MinidlLocal<{c_type}{inner}> minidl_{name}(\"{name}\"{values}); "
            f"auto& {name} = minidl_{name}.a;")


_PURE = re.compile(  # functions that always use the value of their argument
    r"_*(f?(abs|ma|min|max|dim|mod)|pow|sqrt|rsqrt|exp\d*|log\w*|sin|cos|tan|tanh|erf|floor|ceil"
    r"|rint|round|trunc|half2float|float2half|isnan|isinf)f?$")


def _may_stay_unset(rest, name):
    """Returns True if code may read the variable `name` before the variable has a value. There is
    one exception: code may pass the variable to a function that can ignore the value, such as a
    shuffle. In this case the result is False, because the read may be correct.
    rest: the text after the variable's declaration."""
    first = re.search(rf"\b{name}\b", rest)
    if not first:
        return False
    before = rest[: first.start()]
    assigned = re.match(r"\s*=(?!=)", rest[first.end() :])
    if assigned and not re.search(r"[{}]", before) and re.search(r"(^|;|\bfor\s*\()\s*$", before):
        return False
    for use in re.finditer(rf"(?<=[(,])\s*{name}\s*(?=[,)])", rest):
        depth, i = 0, use.start() - 1
        while depth or rest[i] != "(":  # finds the opening bracket before the use
            depth += (rest[i] in ")]}") - (rest[i] in "([{")
            i -= 1
            if i < 0:
                return False
        called = re.search(r"([A-Za-z_]\w*)\s*(<[^<>;(){}]*>\s*)?$", rest[:i])
        if called and called[1] not in ("if", "while", "switch", "return", "for", "sizeof"):
            if not _PURE.match(called[1]):
                return False
    return True


def _watch_locals(code, kinds):
    """Puts guards around local arrays, and around numbers whose address is taken
    (kernels/host/locals.cpp). Returns the new code."""
    blank = blank_out(code)
    out, at = [], 0
    for f in functions(blank)[0]:
        found = [m for kind in kinds if kind is not _UNSET
                 for m in kind.finditer(blank, f.body[0] - 1, f.body[1])]
        for m in sorted(found, key=lambda m: m.start()):
            if m.start() < at or _NO_TYPE & set(m[2].split()) or "__shared__" in m[0]:
                continue
            name, extents, end, values = m[3], m[4].strip(), m.end(), ""
            if not extents:
                address = rf"[=?:(,]\s*&\s*{name}\b"
                if "," in m[5] or not re.search(address, blank[end : f.body[1]]):
                    continue
                if m[5] != ";":
                    values = f", ({m[2]})({code[m.start(5) + 1 : end - 1].strip()})"
            elif m[5] != ";":
                close = match_bracket(blank, m.end() - 1)
                end = code.index(";", close) + 1
                if blank[close + 1 : end - 1].strip():  # several variables in one declaration
                    continue
                values = ", " + code[m.end() - 1 : close + 1]
            before = blank[f.body[0] : m.start()]
            inner = ", true" * (before.count("{") > before.count("}"))
            new = m[1] + _between_guards(m[2] + extents, inner, name, values)
            lines = code[m.start() : end].count("\n") - new.count("\n")
            out += [code[at : m.start()], new, "\n" * lines]
            at = end
    return "".join([*out, code[at:]])


# Finds the text that cpu.generate writes for `extern __shared__ float s[];`
_DYNAMIC = re.compile(r"\bconst (\w+) = \([^()]*\)minidl_dynamic_shared\(\);")


def _announce_shared(code):
    """Writes minidl_shared("s", s) after every declaration of a __shared__ variable. Returns the
    new code."""
    code = _DYNAMIC.sub(r'\g<0> minidl_check_dynamic("\1", sizeof(*\1));', code)
    out, at = [], 0
    for d in shared.declarations(code):
        calls = "".join(f' minidl_shared("{name}", {name});' for name in d.names)
        # __half is a class. For an array of __half without an initialiser, the compiler adds a
        # hidden flag that tells whether the array is constructed, and code that reads this flag.
        # Such a read is not in the kernel's text. With an initialiser there is no flag.
        made = ",".join(w + " = {}" * (w == plain)
                        for w, plain in zip(d.written, d.plain, strict=True))
        out += [code[at : d.begin], "__shared__", made, ";", calls]
        at = d.end
    return "".join([*out, code[at:]])
