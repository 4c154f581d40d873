"""Finds a .cu file and reads it. Replaces each #include in the text by the included file.

Test: tests/cuda/host/test_source.py
"""

import functools
import os
import re
from pathlib import Path
from time import monotonic

from minidl.checkout import ROOT

KERNELS = ROOT / "kernels"


class KernelError(Exception):
    """A kernel cannot be found, compiled or launched. The message tells what to do."""


class Edited(KernelError):
    """The file of a compiled kernel has changed. The launch ran nothing."""


# CUDA's and C's headers. kernels/host/ has the functions of these headers. Any other header is an
# error.
KNOWN_HEADERS = re.compile(
    r"(cuda\w*|cooperative_groups(/reduce|/scan)?|device_\w+|math_constants|sm_\w+|vector_\w+)"
    r"\.h(pp)?$"
    r"|(math|stdint|stddef|stdio|float|limits|assert)\.h$"
    r"|c(math|stdint|stddef|stdio|float|limits|assert)$|cooperative_groups$")
_INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
# The headers that NVRTC must include. The other headers are built into NVRTC, or kernels/nvrtc.h
# replaces them.
_NVIDIA_HEADER = re.compile(
    r"^\s*#\s*include\s*<((?:cuda_fp16|cuda_bf16|cooperative_groups|mma)[\w/.]*)>", re.M)


def find(path):
    """Returns the absolute path of a .cu file: `path` itself, or else `path` in kernels/. Raises
    KernelError if there is no such file."""
    for candidate in (Path(path), KERNELS / path):
        if candidate.is_file():
            return candidate.resolve()
    there = ", ".join(sorted(f.name for f in KERNELS.glob("*.cu")))
    raise KernelError(f"there is no file {str(path)!r} in this folder or in {KERNELS}. "
                      f"{KERNELS} has {there}")


def inline_includes(path, keep_headers=False):
    """Returns the text of a file with each `#include "x"` replaced by the text of x, between #line
    marks. x is in the file's folder or in kernels/.

    A known header in <> is removed, unless keep_headers is True. An unknown header is replaced by
    an #error. Raises KernelError if a file cannot be read, or if a file includes itself."""
    once = set()

    def read(file, above):
        file = Path(file)
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise KernelError(f"cannot read {file}: {error}") from None
        out = [f'#line 1 "{file}"']
        for number, line in enumerate(text.split("\n"), 1):
            words = line.split() if "#" in line else []
            if words[:2] == ["#pragma", "once"]:
                once.add(file)
                out.append("")
            elif include := words and _INCLUDE.match(line):
                header = include[2]
                places = (folder / header for folder in (file.parent, KERNELS))
                found = next((place for place in places if place.is_file()), None)
                if found and found.resolve() in above:
                    raise KernelError(f"{file}:{number}: {header} includes itself")
                if found and found not in once:
                    out += [read(found, {*above, found.resolve()}), f'#line {number + 1} "{file}"']
                elif found or KNOWN_HEADERS.search(header):
                    out.append(line if keep_headers else "")
                elif include[1] == '"':
                    out.append(f"#error minidl: {header} is not found in the folder of {file.name} "
                               "or in kernels/")
                else:
                    out.append(f"#error minidl: <{header}> is not supported in a kernel file: "
                               "neither NVRTC nor the CPU runner has the C++ standard library")
            else:
                out.append(line)
        return "\n".join(out)

    return read(path, {Path(path).resolve()})


LOOK_S = 0.02  # seconds between checks of a file's date. A person needs longer to save and launch


class Files:
    """A .cu file and the files that it includes."""

    def __init__(self, path):
        self.path, self.files, self.dates, self.due = Path(path), (), None, 0.0

    def stamp(self):
        """Returns a value that changes when one of the files changes. A missing file does not count
        as a change, because some editors remove a file before they write it."""
        self.due = monotonic() + LOOK_S
        dates = [_date(file) for file in self.files]
        gone = self.dates and any(new is None and old for new, old in zip(dates, self.dates[1]))
        if not gone and (not self.dates or tuple(dates) != self.dates[1]):
            self.files = tuple(_files_of(self.path))
            self.dates = self.files, tuple(_date(file) for file in self.files)
        return self.dates

    def differ(self, stamp):
        """Returns True if the files have changed since `stamp`. Looks at the files at most once in
        20 ms."""
        return (self.dates if monotonic() < self.due else self.stamp()) != stamp


files = functools.cache(Files)  # one object for each path


def _date(file):
    try:
        about = os.stat(file)
    except OSError:
        return None
    # The date alone is not enough, because two writes within one tick of the clock have the same
    # date.
    return about.st_mtime_ns, about.st_size, about.st_ino


def _files_of(path):
    """Returns the names of the file and of all files that it includes. An included file that does
    not exist is listed, too."""
    found, todo = {}, [Path(path)]
    while todo:
        file = todo.pop()
        if str(file) in found:
            continue
        found[str(file)] = None
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        for line in text.split("\n"):
            include = _INCLUDE.match(line)
            if not include:
                continue
            for place in (folder / include[2] for folder in (file.parent, KERNELS)):
                if place.is_file():
                    todo.append(place)
                    break
                if not KNOWN_HEADERS.search(include[2]):
                    found[str(place)] = None
    return list(found)


def for_nvrtc(path, defines):
    """Returns the whole text of a kernel file for NVRTC. It begins with NVIDIA's headers. Then come
    `defines` as #define lines, kernels/nvrtc.h with C's names, and the file itself. The included
    files replace the #include lines.

    The included files are in the text because CuPy's cache compares only the text. The cache does
    not notice a change in a file that the text only names in an #include. The macros come after the
    headers because NVIDIA's headers have template parameters called T. With -DT=float such a
    parameter would become `template <typename float>`."""
    headers = _NVIDIA_HEADER.findall(inline_includes(path, keep_headers=True))
    head = [f"#include <{h}>" for h in dict.fromkeys(headers)]
    head += [f"#define {k} {v}" for k, v in sorted(defines.items())]
    head += ['#line 1 "nvrtc.h"', (KERNELS / "nvrtc.h").read_text().replace("#pragma once", "")]
    return "\n".join([*head, inline_includes(path)])
