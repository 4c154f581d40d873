"""Compiles a .cu file with NVIDIA's compiler, without a GPU. Shows errors, registers and spills.

NVRTC is the compiler that CuPy uses. `pip install 'minidl[nvrtc]'` installs it (60 MB). NVRTC needs
no GPU driver.

    minidl.cuda.nvrtc.check("add3.cu")   ->   kernel   arch   registers  shared  stack  spills
                                              add3     sm_80         12       0      0       0

The CPU's compiler accepts some texts that NVRTC rejects, and NVRTC accepts some texts that the
CPU's compiler rejects. So try a kernel with both compilers.
Source: NVRTC's documentation; ptxas' log with --ptxas-options=-v.   Test: tests/cuda/test_nvrtc.py
"""

import functools
import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

from minidl.cuda import nvrtc_process
from minidl.cuda.host.compiler import cache_folder, keep, kept
from minidl.cuda.host.includes import KERNELS, KernelError, find, for_nvrtc, inline_includes
from minidl.cuda.host.source import Source
from minidl.text import Columns

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # A100, H100, B200
NO_NVRTC = "NVRTC is not installed: pip install 'minidl[nvrtc]' (60 MB, needs no GPU)"

# The resources of one kernel. For each thread: registers, bytes of stack, bytes of spills. For each
# block: bytes of shared memory.
Usage = namedtuple("Usage", "kernel arch registers shared stack spills")


def check(path, defines=None, architectures=ARCHITECTURES, instances=()):
    """Compiles a .cu file for each architecture. Returns a list of Usage. Raises KernelError, with
    NVRTC's messages, if the file does not compile.

    instances: template instances, such as 'scale<float, 4>'. If a template has no instance in this
    list, NVRTC only parses the template."""
    path = find(path)
    text = for_nvrtc(path, defines or {})
    names = [f.name for f in Source(path, inline_includes(path)).kernels]
    usages = []
    for arch in architectures:
        log = compile_log(path, text, [], arch, instances)
        usages += _usages(log, arch, names)
    return usages


USAGES = Columns(("kernel", "<32"), ("arch", "<6"), ("registers", ">9"), ("shared", ">7"),
                 ("stack", ">6"), ("spills", ">6"), gap=" ")


def table(usages, tr=str):
    """Returns the usages as lines of text. Spills get a mark, because they cause slow memory
    traffic."""
    lines = [USAGES.row(*u) + tr("  <- spills") * (u.spills > 0) for u in usages]
    return "\n".join([USAGES.head(tr), *lines])


def available():
    """Returns None if NVRTC is installed. Else returns a sentence that tells how to install
    NVRTC."""
    try:
        _library()
    except KernelError as error:
        return str(error)
    return None


def compile_log(path, text, options, arch, instances=()):
    """Compiles `text`, the text of the file at `path`. Returns NVRTC's log, in which ptxas prints
    the numbers of registers and spills. Logs are kept in the folder of the compiled kernels, so the
    same text is compiled only once."""
    _, include = _library()
    flags = ["--std=c++17", "-default-device", f"--gpu-architecture={arch}", "--ptxas-options=-v"]
    flags += [f"-I{include}", f"-I{include}/cccl", *options]
    folder, key = cache_folder(), _key(text, flags, instances)
    file = folder and folder / f"{key}.nvrtc.log"
    log = kept(file) if file else None
    if log is None:
        log = _compiled(path, text, flags, arch, instances)
        if file:
            keep(file, log)
    return log


def _key(text, flags, instances):
    """Returns a hash of everything that a log depends on: the text, the options, and the versions
    of NVRTC and its headers."""
    library, include = _library()
    files = [library, include / "cuda_fp16.h"]
    stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    # A checkout in another folder gets the same key.
    text = text.replace(f"{KERNELS.parent}{os.sep}", "")
    return hashlib.sha256(repr((text, flags, list(instances), stats)).encode()).hexdigest()[:32]


def _compiled(path, text, flags, arch, instances):
    """Compiles `text` in a process of its own (nvrtc_process.py). Returns NVRTC's log. Raises
    KernelError, with the log, if the text does not compile."""
    library, _ = _library()
    asked = dict(library=str(library), text=text, name=path.name, flags=flags,
                 instances=list(instances))
    ran = subprocess.run([sys.executable, "-I", nvrtc_process.__file__], input=json.dumps(asked),
                         capture_output=True, text=True)
    if ran.returncode:
        how = (f"was ended by {signal.Signals(-ran.returncode).name}" if ran.returncode < 0
               else f"failed: {ran.stderr.strip().splitlines()[-1]}")
        raise KernelError(f"{path} does not compile (NVRTC, {arch}): NVRTC {how}")
    answer = json.loads(ran.stdout)
    if answer["status"]:
        raise KernelError(f"{path} does not compile (NVRTC, {arch}):\n{answer['log']}")
    return answer["log"]


@functools.cache
def _library():
    """Returns (the path of NVRTC's library, the folder of CUDA's headers). Both are in the wheels
    that minidl[nvrtc] installs. Raises KernelError if the wheels are missing."""
    spec = importlib.util.find_spec("nvidia")
    for root in map(Path, spec.submodule_search_locations if spec else ()):
        libraries = [f for f in sorted(root.glob("*/lib/libnvrtc.so.*"))
                     if "builtins" not in f.name and ".alt." not in f.name]
        headers = sorted(root.glob("*/include/cuda_fp16.h"))
        if libraries and headers:
            return libraries[-1], headers[-1].parent
    raise KernelError(NO_NVRTC)


def _usages(log, arch, names):
    """Returns a Usage for each kernel, from ptxas' lines: 'Compiling entry function 'add3' for
    'sm_80'', '0 bytes stack frame, ...', 'Used 12 registers, ...'."""
    usages = []
    for entry in re.split(r"Compiling entry function '", log)[1:]:
        mangled = entry.split("'")[0]
        # The name of an extern "C" function is not mangled: 'add3'. A mangled name has the length
        # of the plain name and then the plain name: _Z5scaleIfLi4EEvPT_
        plain = [n for n in names if n == mangled or f"{len(n)}{n}" in mangled]
        is_mangled = plain and mangled not in names
        kernel = f"{max(plain, key=len)} [{mangled}]" if is_mangled else mangled

        def number(pattern, text=entry):
            found = re.search(pattern, text)
            return int(found[1]) if found else 0

        spills = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
        usages.append(Usage(kernel, arch, number(r"Used (\d+) registers"),
                            number(r"(\d+) bytes smem"), number(r"(\d+) bytes stack frame"),
                            spills))
    return usages
