"""Finds a C++ compiler, runs it, and keeps the compiled libraries, so no kernel is compiled twice.

    ~/.cache/minidl/kernels/<key>.so             key = hash of the source with its includes, the
                                                 host headers, flags, compiler, CPU
    ~/.cache/minidl/kernels/<key>.so.sha256      the checksum of the library

Several ranks may need the same kernel at the same time. Each rank compiles into a file of its own
and then renames this file to the final name. A rename replaces the whole file, so no process loads
half a library.

When a library is loaded, its code can run. So a library is loaded only under two conditions. Its
checksum must be right. It must belong to this user, to root or to the owner of the folder in
MINIDL_CACHE. Else the library is compiled again.

If the cache folder cannot be written or is full, this process warns and uses a temporary folder. If
the temporary folder is full, too, the process uses a folder in memory. If the folder in memory is
full, too, ops use NumPy.
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

HOST = KERNELS / "host"  # this folder has CUDA's functions and variables for the CPU

NO_COMPILER = ("no C++ compiler found; without a GPU, .cu files need one. Install one: "
               "`sudo apt install g++` (Debian, Ubuntu), `xcode-select --install` (macOS), or `pip "
               "install 'minidl[zig]'` anywhere; or name yours in MINIDL_CXX")

# -ffast-math is never used. With it the compiler would assume that there are no infinities, and g++
# would set flush-to-zero for the whole process. sqrt and select are vectorised only with
# -fno-math-errno and -fno-trapping-math. These two flags change no value.
FLAGS = ("-std=gnu++17 -fno-math-errno -fno-trapping-math -ffp-contract=fast -fno-strict-aliasing "
         "-fopenmp-simd -fno-exceptions -fno-rtti -fvisibility=hidden -fPIC -w").split()
# These flags are only for the fibre and check forms. With them the compiler does not remove an
# endless loop, and a function that overflows its stack touches the guard page below the stack.
CAREFUL = ["-fno-finite-loops", "-fstack-clash-protection"]
X86 = "x86_64", "AMD64"
LINK = ["-shared", "-pthread"]
LINK += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-lm"]


class Compiler:
    """A compiler's command and flags. kind: 'gnu', 'clang' or 'zig'."""

    def __init__(self, command, kind):
        self.command, self.kind = command, kind

    def __repr__(self):
        return " ".join(self.command)

    @property
    def flags(self):
        """Returns the compiler's flags for kernels. They optimise for this machine's processor. The
        environment variable MINIDL_CPU chooses another processor: x86-64 for any PC, x86-64-v3 for
        a PC with AVX2, or any name that the compiler knows."""
        # -mtls-dialect=gnu2 is not used. With this flag, glibc before 2.40 destroys the values in
        # vector registers when a thread first uses a __shared__ variable (bug 31372).
        cpu = os.environ.get("MINIDL_CPU") or "native"
        native = [f"-m{'cpu' if platform.machine() == 'arm64' else 'arch'}={cpu}"]
        if self.kind == "zig":  # zig's default is this machine. zig's names have `_`: x86_64_v3
            native = [] if cpu == "native" else [f"-mcpu={cpu.replace('-', '_')}"]
        if platform.machine() in X86:  # without this flag, vectors use half of an AVX-512 register
            native.append("-mprefer-vector-width=512")
        return [*FLAGS, "-O3", *native, *self.no_mmx, *self.no_library, *self.null_faults]

    @property
    def runtime_flags(self):
        """Returns the compiler's flags for the runtime library. They do not optimise for this
        processor, because this optimisation makes only kernels faster."""
        # Some compilers switch FORTIFY on by default. FORTIFY would stop the program when a launch
        # jumps back after a fault.
        flags = ("-std=gnu++17 -O2 -fno-exceptions -fno-rtti -fPIC -fvisibility=hidden -w "
                 "-U_FORTIFY_SOURCE")
        return [*flags.split(), *self.no_mmx, *self.no_library]

    @property
    def no_mmx(self):
        # g++ 12 without AVX moves halves of vectors through MMX registers, and does not release
        # these registers. MMX and x87 use the same registers. So the x87 registers stay full, and 7
        # // 2.0 in NumPy is nan.
        return ["-mno-mmx"] if self.kind == "gnu" and platform.machine() in X86 else []

    @property
    def null_faults(self):
        # Without -fno-delete-null-pointer-checks, clang removes an access through a null pointer.
        # But such an access should be an error.
        return [] if self.kind == "gnu" else ["-fno-delete-null-pointer-checks"]

    @property
    def no_library(self):
        # Kernels use no C++ library. Without -nostdlib++, zig would first compile its own C++
        # library, which takes minutes.
        return ["-nostdlib++"] if self.kind == "zig" else []

    def identity(self):
        """Returns a text that changes when the compiler changes. The text does not have the
        compiler's version, because only a new process can ask for the version."""
        file = shutil.which(self.command[0])
        about = os.stat(file)
        return f"{self.command} {os.path.realpath(file)} {about.st_size} {about.st_mtime_ns}"


def find_compiler():
    """Returns the Compiler: $MINIDL_CXX, else g++, else clang++, else the ziglang wheel. Raises
    KernelError if there is no compiler."""
    return _find(os.environ.get("MINIDL_CXX", ""), os.environ.get("PATH", ""))


@functools.cache
def _find(chosen, path):
    if chosen:
        command = chosen.split()
        if not shutil.which(command[0]):
            raise KernelError(f"MINIDL_CXX wants a compiler on the PATH; got {command[0]!r}")
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
    """Returns the processor's name and features. The result of -march=native depends on them."""
    try:
        with open("/proc/cpuinfo") as f:
            # Only the lines of the first processor are used.
            lines = f.read(8192).split("\n\n")[0].splitlines()
        wanted = "model name", "flags", "CPU part", "Features"
        return "\n".join(line for line in lines if line.startswith(wanted))
    except OSError:
        return platform.processor() + platform.machine()


@functools.cache
def _host_texts():
    """Returns the texts of the files in kernels/host/."""
    return [file.read_text() for file in sorted(HOST.iterdir()) if file.suffix in (".h", ".cpp")]


def cache_folder():
    """Returns the folder `kernels` in $MINIDL_CACHE, else in $XDG_CACHE_HOME/minidl, else in
    ~/.cache/minidl. Makes the folder if needed. Returns None if the folder cannot be written."""
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
    """Returns a hash of these parts, the host headers, the compiler and the CPU. The hash does not
    depend on the folder of minidl, so a copy of minidl in another folder finds the same
    libraries."""
    digest = hashlib.sha256()
    for part in (*parts, find_compiler().identity(), _cpu(), *_host_texts()):
        digest.update(str(part).replace(f"{KERNELS.parent}{os.sep}", "").encode())
        digest.update(b"\0")
    return digest.hexdigest()[:32]


def cached(key):
    """Returns the path of the library `key` in a cache folder, or None. Also looks in a folder that
    this user cannot write."""
    named = os.environ.get("MINIDL_CACHE")
    folders = [cache_folder(), named and Path(named) / "kernels", *(Path(m.name) for m in _made)]
    files = [folder / f"{key}.so" for folder in folders if folder]
    return next((file for file in files if file.exists() and is_whole(file)), None)


def is_whole(file):
    """Returns True if the file has the checksum that was written with it, and no other user can
    have written the file."""
    try:
        data, told = file.read_bytes(), _sum_of(file).read_text("ascii")
        return told == hashlib.sha256(data).hexdigest() and is_ours(file)
    except (OSError, ValueError):
        return False


def _sum_of(file):
    return file.with_name(f"{file.name}.sha256")


_made = []  # temporary folders of this process, the oldest first. They are removed when Python ends
MEMORY = "/dev/shm"  # on Linux, the files of this folder are in memory


def writable_folder():
    """Returns the cache folder. If the cache folder cannot be written, returns a temporary folder
    of this process."""
    if _made:
        return Path(_made[-1].name)
    return cache_folder() or own_folder("cannot be written")


def own_folder(why):
    """Makes a temporary folder for this process and returns it. The folder of the first call is in
    TMPDIR, or in memory if TMPDIR has no space. The folder of the second call is in memory. Raises
    NoSpace if no folder can be made.
    why: a text that tells why the cache folder cannot be used. The first call shows it in a
    warning."""
    if not _made:
        warnings.warn(f"the folder for compiled kernels {why} (MINIDL_CACHE, else "
                      "~/.cache/minidl): each process compiles its own. Name another folder in "
                      "MINIDL_CACHE", RuntimeWarning, stacklevel=3)
    for parent in (None, MEMORY)[len(_made):]:  # None means TMPDIR, or the system's folder
        try:
            if _refuses_libraries(parent or tempfile.gettempdir()):
                continue
            _made.append(tempfile.TemporaryDirectory(prefix="minidl-kernels-", dir=parent))
            return Path(_made[-1].name)
        except OSError:
            pass
    raise NoSpace("there is no space left for compiled kernels in any folder. Name other folders "
                  "in TMPDIR and MINIDL_CACHE")


def _refuses_libraries(folder):
    """Returns True if the folder is mounted with noexec, as /dev/shm often is in containers. Python
    cannot load libraries from such a folder."""
    return hasattr(os, "ST_NOEXEC") and bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)


class NoSpace(KernelError, NoRoom):
    """There is no space for a compiled kernel. Ops then use NumPy (mode.give_up_kernels)."""


def build(key, arguments, text=None, describe="the kernel"):
    """Compiles `text`, or the files in `arguments`, into the library `key`. Returns the library's
    path. If the disk is full, tries a temporary folder. Raises KernelError if the text does not
    compile."""
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
    """Writes a text into the cache, with its checksum. If there is no space, does nothing."""
    with contextlib.suppress(OSError):
        write_whole(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")


def kept(path):
    """Returns the text that keep() wrote. Returns None if the file is missing or damaged, or if
    another user can have written it."""
    try:
        told, _, text = path.read_text("utf-8").partition("\n")
        whole = told == hashlib.sha256(text.encode()).hexdigest()
        return text if whole and is_ours(path) else None
    except (OSError, ValueError):
        return None


def load_host(name, flags, *files):
    """Returns a ctypes.CDLL: the library `name` of minidl, made from these files of kernels/host/.
    Compiles it with these flags if needed. Libraries that are loaded later find its functions."""
    key = key_of(name, *flags)
    sources = [str(HOST / f) for f in files]
    file = cached(key) or build(key, [*flags, *sources], describe=f"minidl's {name} library")
    return ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


def run(arguments, text=None, describe="the kernel", messages=False):
    """Runs the compiler. Returns the compiler's output, or its messages if `messages` is True.
    Raises KernelError, with the messages, if the compiler fails."""
    compiler = find_compiler()
    command = [*compiler.command, *arguments]
    try:
        # the compiler writes its temporary files into the folder that has space for the result
        env = {**os.environ, "TMPDIR": _made[-1].name} if _made else None
        result = subprocess.run(command, input=text, capture_output=True, text=True, env=env)
    except OSError as error:
        raise KernelError(f"cannot start the compiler {compiler}: {error}") from None
    if result.returncode and os.strerror(errno.ENOSPC) in result.stderr:
        raise NoSpace(f"no space left to compile {describe}: {tempfile.gettempdir()} or "
                      f"{writable_folder()} is full. Name other folders in TMPDIR and MINIDL_CACHE")
    if result.returncode:
        raise KernelError(f"{describe} does not compile ({compiler}):\n{_readable(result.stderr)}")
    return result.stderr if messages else result.stdout


def _readable(log):
    """Returns at most 40 lines of a compiler's messages, from the first error on. Leaves out the
    notes about minidl's own files."""
    # An unknown CUDA name gets a clear message. The compiler's guess of a similar name is removed.
    log = re.sub(r"error: (?:‘|'|use of undeclared identifier '|no template named ')"
                 r"((?:__|cuda|nv|tex|surf|cg::|cooperative_groups::)\w*)['’]"
                 r"(?: (?:was not declared in this scope|does not name a type))?"
                 r"(?:[;,] did you mean .*)?",
                 r"error: \1 is not supported by the CPU runner (kernels/README.md says what is)",
                 log)
    lines = [line for line in log.splitlines() if "In file included from" not in line]
    first = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + 40]) or log
