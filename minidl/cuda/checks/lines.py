"""Finds the line of the .cu file for a place in compiled code, with the debugger's tables.

    0x4a2  --addr2line-->  atomics.h:41, called from reduce.cu:14   -> reduce.cu:14

This file calls addr2line of binutils, LLVM's tools, or Apple's atos. If none of these tools is
installed, the findings have no line, and a note in the report tells the reason.
Test: tests/cuda/checks/test_lines.py, test_check_planted.py
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

NO_LINES = ("lines are not known: the PATH has none of addr2line, llvm-symbolizer, atos. Install "
            "binutils or llvm (apt, dnf, brew; on a Mac also: xcode-select --install)")
TOOLS = ["addr2line", "llvm-addr2line", "llvm-symbolizer",
         *(f"llvm-symbolizer-{n}" for n in range(24, 13, -1))]


def symbolizer():
    """Returns the path of a tool that finds the source line of an address in compiled code. Returns
    None if no such tool is installed. On a Mac atos is tried first."""
    tools = ["atos", *TOOLS] if sys.platform == "darwin" else [*TOOLS, "atos"]
    return next(filter(None, map(shutil.which, tools)), None)


def keep_lines(file):
    """Keeps the debugger's tables of the library `file` on a Mac. Does nothing on other systems.
    On a Mac only the object file has these tables. The library contains only the name of the object
    file. dsymutil copies the tables into the folder <file>.dSYM. Call this function after linking,
    while the object file exists."""
    if sys.platform == "darwin" and shutil.which("dsymutil"):
        subprocess.run(["dsymutil", str(file)], capture_output=True)


def lines_of(file, places):
    """Returns {place: (file name, line)} for `places`, addresses in the library `file`.

    A place is the address after a call. If the call is in an inlined function of minidl, the
    returned line is the line in the student's file that uses this function. A place without a line
    in the student's file is left out. If no tool is installed, returns {}."""
    tool = symbolizer()
    if not places or tool is None:
        return {}
    wanted = sorted(places)
    # A return address is the address after the call. One byte earlier is still a byte of the call.
    addresses = [hex(p - 1) for p in wanted]
    command = [tool, "-e", str(file), "-i", "-a"]
    if is_atos := Path(tool).name == "atos":
        kept = Path(f"{file}.dSYM", "Contents", "Resources", "DWARF", Path(file).name)
        command = [tool, "-o", str(kept if kept.exists() else file), "-i", "-fullPath",
                   "-d", " <- ", "-offset"]
    elif "symbolizer" in Path(tool).name:
        command += ["--output-style=GNU", "--functions=none"]
    output = subprocess.run([*command, *addresses], capture_output=True, text=True).stdout
    if is_atos:  # output lines: g (in key.so) (/path/atomics.h:41) <- f (in key.so) (...)
        output = re.sub(r"^(?=.)", "0x\n", output, flags=re.M).replace(" <- ", "\n")
    lines, at = {}, iter(wanted)
    for text in output.splitlines():
        if text.startswith("0x"):  # each next line is a call at this address, innermost first
            place = next(at)
        elif (frame := re.match(r"(.*):(\d+)", text)) and place not in lines:
            path = Path(frame[1])
            ours = path.parts[-3:-1] == ("kernels", "host")  # a file of minidl itself
            ours = ours or path.name.startswith("launchers made")
            if not ours and path.suffix:
                lines[place] = (path.name, int(frame[2]))
    return lines
