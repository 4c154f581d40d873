"""Finds a .cu file and reads it: its includes put in place, its macros for NVRTC in front.

Test: tests/cuda/host/test_source.py
"""

import re
from pathlib import Path

# beside the package in a checkout (`pip install -e`)
KERNELS = Path(__file__).resolve().parents[3] / "kernels"


class KernelError(Exception):
    """A kernel that cannot be found, compiled or launched; the message says what to do."""


# Headers of which the host side has what kernels use; any other is named in an error.
KNOWN_HEADERS = re.compile(
    r"(cuda\w*|cooperative_groups(/reduce)?|device_\w+|math_constants|sm_\w+|vector_\w+)\.h(pp)?$"
    r"|(math|stdint|stddef|stdio|float|limits|assert)\.h$"
    r"|c(math|stdint|stddef|stdio|float|limits|assert)$|cooperative_groups$")
_INCLUDE = re.compile(r'\s*#\s*include\s*([<"])([^>"]+)[>"]')
# Those of them that NVRTC needs: all others it has built in, or kernels/nvrtc.h stands for them.
_NVIDIA_HEADER = re.compile(
    r"^\s*#\s*include\s*<((?:cuda_fp16|cuda_bf16|cooperative_groups|mma)[\w/.]*)>", re.M)


def find(path):
    """The file meant by `path`: as it is, else in kernels/."""
    for candidate in (Path(path), KERNELS / path):
        if candidate.is_file():
            return candidate.resolve()
    there = ", ".join(sorted(f.name for f in KERNELS.glob("*.cu")))
    raise KernelError(f"no file {str(path)!r} here, nor in {KERNELS}, which has: {there}")


def inline_includes(path, keep_headers=False):
    """The text of a file with `#include "x"` replaced, between #line marks, by x, which is beside
    the file or in kernels/. Known headers in <> are dropped, or kept; others become an #error."""
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
                    out.append(f"#error minidl: {header} is not found beside {file.name} or in "
                               "kernels/")
                else:
                    out.append(f"#error minidl: <{header}> is not supported in a kernel file: "
                               "neither NVRTC nor the CPU runner has the C++ standard library")
            else:
                out.append(line)
        return "\n".join(out)

    return read(path, {Path(path).resolve()})


def for_nvrtc(path, defines):
    """The whole text of a kernel file for NVRTC: its includes put in place as for the CPU, C's
    names from kernels/nvrtc.h, `defines` as lines of the text and not on the command line.

    In one text, because CuPy keeps what it compiled by the text alone: an include that changed
    would not be seen. NVIDIA's headers have template parameters called T; -DT=float would turn
    those into `template <typename float>`. So the headers come first, then the macros, then the
    file."""
    headers = _NVIDIA_HEADER.findall(inline_includes(path, keep_headers=True))
    head = [f"#include <{h}>" for h in dict.fromkeys(headers)]
    head += [f"#define {k} {v}" for k, v in sorted(defines.items())]
    head += ['#line 1 "nvrtc.h"', (KERNELS / "nvrtc.h").read_text().replace("#pragma once", "")]
    return "\n".join([*head, inline_includes(path)])
