"""Notes which lines of minidl run, in this process and in the processes that it starts.

Python imports a module of this name when it starts, if the folder is on PYTHONPATH.
tests/one_token.py puts it there when it records which test file reaches which line. When a line
runs for the first time, its file and number are appended to the file MINIDL_REACHED at once: a
process that is killed has written its lines.
"""

import os
import sys
import threading

MINIDL = os.path.join(os.path.dirname(__file__).removesuffix("tests/reached"), "minidl", "")
noted = set()


def call(frame, event, value):
    """Python calls this when a function begins. Returns what Python shall call at its lines."""
    return line if frame.f_code.co_filename.startswith(MINIDL) else None


def line(frame, event, value):
    place = frame.f_code.co_filename, frame.f_lineno
    if place not in noted:
        noted.add(place)
        os.write(output, f"{place[0].removeprefix(MINIDL)}:{place[1]}\n".encode())
    return line


if "MINIDL_REACHED" in os.environ:
    output = os.open(os.environ["MINIDL_REACHED"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.settrace(call)
    threading.settrace(call)
