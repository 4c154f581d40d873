"""Chooses the clone of minidl that a command works with, if there are two clones.

    ~/old      pip install -e .           the `minidl` command belongs to this clone
    ~/new      minidl run -n 2 tutorials/07_ring.py         runs with ~/new/minidl and ~/new/kernels

All commands follow one rule. A command uses the clone that contains the first Python or CUDA file
among the arguments. If there is no such file, or if it is in no clone, the command uses the clone
that contains the current folder. If there is no such clone, it uses the installed package. Without
this rule a student edits a kernel in ~/new, but the command runs the kernel in ~/old. If the
command was started from another clone, it prints a line and starts itself again from the chosen
clone.

Test: tests/cli/test_clone.py   Used by: main.py
"""

import os
import sys
from pathlib import Path

from minidl.text import tr

HERE = Path(__file__).resolve().parents[2]  # the folder with the running package
STARTED = "MINIDL_CLONE"  # this variable holds the clone for which the command was started again


def around(path):
    """Returns the clone that contains the file or folder `path`, or None."""
    path = Path(path).resolve()
    for folder in (path, *path.parents):
        if (folder / "minidl" / "__init__.py").is_file() and (folder / "kernels").is_dir():
            return folder
    return None


def wanted(arguments):
    """Returns the clone for a command with these arguments. None means the installed package."""
    for argument in arguments:
        if argument.endswith((".py", ".cu")) and os.path.isfile(argument):
            return around(argument) or around(Path.cwd())
    return around(Path.cwd())


def follow(arguments):
    """Starts the command again with the clone that wanted() chooses. Does nothing if the command
    was started from that clone."""
    clone = wanted(arguments)
    if clone is None or clone == HERE:
        return
    if os.environ.get(STARTED) == str(clone):  # the second start, but Python still uses HERE
        print(tr(f"minidl: wanted the package in {clone}, but Python imports the one in {HERE}. "
                 f"Run `pip install -e {clone}`"), file=sys.stderr)
        return
    print(tr(f"minidl: using the package in {clone}, not the installed package in {HERE}"),
          file=sys.stderr)
    path = os.pathsep.join(filter(None, [str(clone), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, STARTED: str(clone)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "minidl", *arguments], environment)
