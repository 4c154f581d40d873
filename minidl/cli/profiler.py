"""`minidl profile [-n 4] script.py`: profiles a script. The script is not changed.

    minidl profile -n 4 train.py --steps 20      prints a report, writes profile.json
                                                 (for Perfetto) and profile.html
    minidl profile --picture train.py            runs one rank, also writes profile.png
    minidl trace profile.json                    prints the report again

Each rank runs the script inside of `minidl.profile(t)` (profiled.py).
Test: tests/profile/test_cli.py
"""

import json
import os
import runpy
import sys
from pathlib import Path

from minidl.cli import launcher
from minidl.cli.profiled import SETTINGS, around
from minidl.text import tr


def run(script, arguments, n, out, memory, picture, deadline_s):
    """Profiles a Python script. Returns its exit status.

    n:          how many ranks. If None, the script runs in this process, without MPI
    out:        the name of the written files, without .json, .html, .png
    memory:     if True, also measures the memory of weights, gradients and other kinds
    picture:    if True, also writes a .png
    deadline_s: as in launcher.run"""
    launcher.check_script(script, arguments, n or 1)
    if not (folder := Path(out).absolute().parent).is_dir():
        raise launcher.LaunchError(f"--out {out}: there is no folder {folder}")
    settings = json.dumps({"out": os.path.abspath(out), "memory": memory, "picture": picture})
    if n is not None:
        os.environ[SETTINGS] = settings
        return launcher.run(script, arguments, n, deadline_s=deadline_s)
    sys.argv = [script, *arguments]
    sys.path[:0] = [os.path.dirname(os.path.realpath(script))]
    return around(lambda: runpy.run_path(script, run_name="__main__"), settings, None)


def show(path):
    """`minidl trace FILE`: prints the report of a trace. Returns the exit status."""
    from minidl.profile import report, trace

    try:
        print(report.text(trace.read(path)[1], tr))
    except (OSError, ValueError) as error:
        why = f"cannot read {path}: {error.strerror}" if isinstance(error, OSError) else error
        print(tr(f"minidl trace: {why}"), file=sys.stderr)
        return 2
    return 0
