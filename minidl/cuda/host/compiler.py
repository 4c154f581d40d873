"""Finds a C++ compiler, runs it, and keeps what it made: nothing is compiled twice.

    ~/.cache/minidl/kernels/<key>.so             key = hash of the source with its includes, the
                                                 host headers, flags, compiler, CPU
    ~/.cache/minidl/kernels/<key>.so.sha256      the checksum of the library

Several ranks may want the same kernel at once. Each compiles into a file of its own and renames it
to the final name: a rename replaces the whole file, so no process loads half a library. To load a
library is to run it. So it must have its checksum, and belong to this user, to root or to the owner
of the folder that MINIDL_CACHE names; else it is compiled again. A cache folder that cannot be
written, or has no space left, is replaced by a temporary one for this process, with a warning; if
that has none either, by one in memory; without room there, too, ops go on with NumPy.
Test: tests/cuda/host/test_compiler.py
"""

import contextlib
import ctypes
import errno
import functools
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from minidl.cuda.host.includes import KERNELS, KernelError
from minidl.mode import NoRoom
from minidl.own_files import is_ours, write_whole

HOST = KERNELS / "host"  # the CPU side of CUDA

NO_COMPILER = ("no C++ compiler found, which .cu files need to run without a GPU. Install one: "
               "`sudo apt install g++` (Debian, Ubuntu), `xcode-select --install` (macOS), or `pip "
               "install 'minidl[zig]'` anywhere; or name yours in MINIDL_CXX")

# Never -ffast-math: it removes infinities from the language, and g++ then sets flush-to-zero for
# the whole process. math-errno and trapping-math off are what vectorising sqrt and select needs,
# and change no value.
FLAGS = ("-std=gnu++17 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fno-strict-aliasing "
         "-fopenmp-simd -fno-exceptions -fno-rtti -fvisibility=hidden -fPIC -w").split()
# Of the fibre and check forms alone: an endless loop stays one, and a frame that leaves its stack
# touches the guard below it.
CAREFUL = ["-fno-finite-loops", "-fstack-clash-protection"]
X86 = "x86_64", "AMD64"
LINK = ["-shared", "-pthread"]
LINK += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-lm"]


class Compiler:
    """A command, its flags and identity. kind: 'gnu', 'clang' or 'zig'."""

    def __init__(self, command, kind):
        self.command, self.kind = command, kind

    def __repr__(self):
        return " ".join(self.command)

    @property
    def flags(self):
        """Flags for kernels: optimised for this processor, or for the one named in MINIDL_CPU, as
        the compiler calls it: x86-64 for any PC, x86-64-v3 for one with AVX2."""
        # Not -mtls-dialect=gnu2: glibc before 2.40 loses vector registers when a thread first
        # touches __shared__ (bug 31372).
        cpu = os.environ.get("MINIDL_CPU") or "native"
        native = [f"-m{'cpu' if platform.machine() == 'arm64' else 'arch'}={cpu}"]
        if self.kind == "zig":  # whose default target is this machine; x86_64_v3 is a -mcpu there
            native = [] if cpu == "native" else [f"-mcpu={cpu.replace('-', '_')}"]
        if platform.machine() in X86:  # else half of an AVX-512 register is used
            native.append("-mprefer-vector-width=512")
        return [*FLAGS, "-O3", *native, *self.no_mmx, *self.no_library, *self.null_faults]

    @property
    def runtime_flags(self):
        """Flags for the runtime library. Not for this processor: only kernels gain from that."""
        # FORTIFY, some compilers' default, takes the way back from a fibre's fault for an attack
        flags = ("-std=gnu++17 -O2 -fno-exceptions -fno-rtti -fPIC -fvisibility=hidden -w "
                 "-U_FORTIFY_SOURCE")
        return [*flags.split(), *self.no_mmx, *self.no_library]

    @property
    def no_mmx(self):
        # g++ 12 without AVX moves halves of vectors through MMX registers and leaves them in use:
        # the x87 registers, which they are, are then full, and NumPy's 7 // 2.0 is nan
        return ["-mno-mmx"] if self.kind == "gnu" and platform.machine() in X86 else []

    @property
    def null_faults(self):
        # else clang drops an access through a null pointer, which should be an error
        return [] if self.kind == "gnu" else ["-fno-delete-null-pointer-checks"]

    @property
    def no_library(self):
        # we use no C++ library, and zig would first compile its own, for minutes
        return ["-nostdlib++"] if self.kind == "zig" else []

    def identity(self):
        """A text that changes when the compiler does (its version would take a process start)."""
        file = shutil.which(self.command[0])
        about = os.stat(file)
        return f"{self.command} {os.path.realpath(file)} {about.st_size} {about.st_mtime_ns}"


def find_compiler():
    """$MINIDL_CXX, else g++, clang++, the ziglang wheel; KernelError if there is none."""
    return _find(os.environ.get("MINIDL_CXX", ""), os.environ.get("PATH", ""))


@functools.cache
def _find(chosen, path):
    if chosen:
        command = chosen.split()
        if not shutil.which(command[0]):
            raise KernelError(f"MINIDL_CXX names {command[0]!r}, which is not on the PATH")
        return Compiler(command, _kind(command))
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return Compiler([name], _kind([name]))
    if wheel := importlib.util.find_spec("ziglang"):
        return Compiler([os.path.join(wheel.submodule_search_locations[0], "zig"), "c++"], "zig")
    raise KernelError(NO_COMPILER)


def _kind(command):
    name = os.path.basename(command[0])
    if name.startswith("zig") or "ziglang" in command:
        return "zig"
    return "clang" if "clang" in name or sys.platform == "darwin" else "gnu"


@functools.cache
def _cpu():
    """What -march=native depends on: the processor's name and features."""
    try:
        with open("/proc/cpuinfo") as f:
            # the first processor's lines are enough, and the file is long
            lines = f.read(8192).split("\n\n")[0].splitlines()
        wanted = "model name", "flags", "CPU part", "Features"
        return "\n".join(line for line in lines if line.startswith(wanted))
    except OSError:
        return platform.processor() + platform.machine()


@functools.cache
def _host_texts():
    """The texts of the CPU side of CUDA."""
    return [file.read_text() for file in sorted(HOST.iterdir()) if file.suffix in (".h", ".cpp")]


def cache_folder():
    """$MINIDL_CACHE, else $XDG_CACHE_HOME/minidl or ~/.cache/minidl; None if not writable."""
    named = os.environ.get("MINIDL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return _writable(Path(named or os.path.join(base, "minidl")) / "kernels")


@functools.cache
def _writable(folder):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return None


def key_of(*parts):
    """The hash of these parts, the host headers, the compiler and the CPU. The folder of minidl is
    left out: a copy of it, or a checkout that moved, finds its libraries."""
    digest = hashlib.sha256()
    for part in (*parts, find_compiler().identity(), _cpu(), *_host_texts()):
        digest.update(str(part).replace(f"{KERNELS.parent}{os.sep}", "").encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def cached(key):
    """The library `key` in the cache, or None. A cache that can only be read is used too."""
    named = os.environ.get("MINIDL_CACHE")
    folders = [cache_folder(), named and Path(named) / "kernels", *(Path(m.name) for m in _made)]
    files = [folder / f"{key}.so" for folder in folders if folder]
    return next((file for file in files if file.exists() and is_whole(file)), None)


def is_whole(file):
    """Returns whether the file has the checksum that was written with it, and nobody else can have
    written it."""
    try:
        data, told = file.read_bytes(), _sum_of(file).read_text("ascii")
        return told == hashlib.sha256(data).hexdigest() and is_ours(file)
    except (OSError, ValueError):
        return False


def _sum_of(file):
    return file.with_name(f"{file.name}.sha256")


_made = []  # this process's own folders, in the order of their making; removed when Python ends
MEMORY = "/dev/shm"  # Linux: files that take memory and no disk


def writable_folder():
    """The cache, or this process's own folder where the cache cannot be written."""
    if _made:
        return Path(_made[-1].name)
    return cache_folder() or own_folder("cannot be written")


def own_folder(why):
    """Makes a folder of this process's own: the first in TMPDIR, with a warning, the second in
    memory. NoSpace if there is no other."""
    if not _made:
        warnings.warn(f"the folder for compiled kernels {why} (MINIDL_CACHE, else "
                      "~/.cache/minidl): each process compiles its own. Name another folder in "
                      "MINIDL_CACHE", RuntimeWarning, stacklevel=3)
    for parent in (None, MEMORY)[len(_made):]:  # None: TMPDIR, or the system's
        try:
            if _refuses_libraries(parent or tempfile.gettempdir()):
                continue
            _made.append(tempfile.TemporaryDirectory(prefix="minidl-kernels-", dir=parent))
            return Path(_made[-1].name)
        except OSError:
            pass
    raise NoSpace("compiled kernels cannot be written anywhere, there is no space left: name "
                  "folders in TMPDIR and MINIDL_CACHE")


def _refuses_libraries(folder):
    """Returns whether the folder is mounted noexec, as /dev/shm is in containers: then Python can
    load no library from it."""
    return hasattr(os, "ST_NOEXEC") and bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


class NoSpace(KernelError, NoRoom):
    """There is no room for a compiled kernel: ops go on with NumPy (mode.give_up_kernels)."""


def build(key, arguments, text=None, describe="the kernel"):
    """Compile `text`, or the files in `arguments`, into the library `key`; returns its path. A disk
    may fill at any time: then a folder of our own is next."""
    folder = writable_folder()
    while True:
        try:
            return _built(folder, key, arguments, text, describe)
        except (NoSpace, OSError):
            folder = own_folder("has no space left")


def _built(folder, key, arguments, text, describe):
    handle, temporary = tempfile.mkstemp(prefix=f"{key}.", suffix=".tmp", dir=folder)
    os.close(handle)
    file = folder / f"{key}.so"
    try:
        source = ["-x", "c++", "-"] if text is not None else []
        run([*arguments, *source, "-o", temporary, *LINK], text, describe)
        os.chmod(temporary, 0o755)
        with open(temporary, "rb") as f:
            data = f.read()
            os.fsync(f.fileno())
        write_whole(_sum_of(file), hashlib.sha256(data).hexdigest())
        os.replace(temporary, file)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)
    return file


def keep(path, text):
    """Write a text into the cache, with its checksum; a cache without space is left as it is."""
    with contextlib.suppress(OSError):
        write_whole(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def kept(path):
    """Returns the text that `keep` wrote; None if it is not there, damaged, or not ours."""
    try:
        told, _, text = path.read_text("utf-8").partition("\n")
        whole = told == hashlib.sha256(text.encode()).hexdigest()
        return text if whole and is_ours(path) else None
    except (OSError, ValueError):
        return None


def load_host(name, flags, *files):
    """The library of these files of kernels/host/; libraries loaded later find its functions."""
    key = key_of(name, *flags)
    sources = [str(HOST / f) for f in files]
    file = cached(key) or build(key, [*flags, *sources], describe=f"minidl's {name} library")
    return ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def run(arguments, text=None, describe="the kernel", messages=False):
    """Run the compiler; its output, or its messages; KernelError with them if it fails."""
    compiler = find_compiler()
    command = [*compiler.command, *arguments]
    try:
        # its temporary files belong where there is room for the result
        env = {**os.environ, "TMPDIR": _made[-1].name} if _made else None
        result = subprocess.run(command, input=text, capture_output=True, text=True, env=env)
    except OSError as error:
        raise KernelError(f"cannot start the compiler {compiler}: {error}") from None
    if result.returncode and os.strerror(errno.ENOSPC) in result.stderr:
        raise NoSpace(f"no space left to compile {describe}, in {tempfile.gettempdir()} or in "
                      f"{writable_folder()}: name other folders in TMPDIR and MINIDL_CACHE")
    if result.returncode:
        raise KernelError(f"{describe} does not compile ({compiler}):\n{_readable(result.stderr)}")
    return result.stderr if messages else result.stdout


def _readable(log):
    """A compiler's messages: from the first error on, without the notes about our own wrappers."""
    # CUDA's words that are not there; a guess at another word would lead astray
    log = re.sub(r"error: (?:‘|'|use of undeclared identifier '|no template named ')"
                 r"((?:__|cuda|nv|tex|surf|cg::|cooperative_groups::)\w*)['’]"
                 r"(?: (?:was not declared in this scope|does not name a type))?"
                 r"(?:[;,] did you mean .*)?",
                 r"error: \1 is not supported by the CPU runner (kernels/README.md says what is)",
                 log)
    lines = [line for line in log.splitlines() if "In file included from" not in line]
    first = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + 40]) or log
