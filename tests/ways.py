"""Records which files of minidl/ a piece of work enters, in order. docs/way_to_*.md must match.

    python -m tests.ways      prints what the pages should contain

Each section of a page shows one way in a code block, where `file.py function` is a call. Below it
are the other files that are called, and the files of the way that are entered again:

    ## Forward: the activation                  with Recorder() as recorded: F.gelu(y)
        cuda/dispatch.py op                    recorded.main == [("cuda/dispatch.py", "op"), ...]
    Asked on the way: `backend.py`.
    Entered again: `function.py`.

sys.setprofile makes Python report every call of a function. C code is not recorded. Comprehensions
and lambdas are left out, because newer Pythons make no call for a comprehension.
Test: tests/test_ways.py
"""

import json
import os
import re
import sys
import threading
from itertools import groupby
from pathlib import Path
from unittest import mock

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "minidl"


# A launch checks its file for changes at most every 20 ms, so a recording has this call only
# sometimes.
BY_THE_CLOCK = {"cuda/host/includes.py"}


class Recorder:
    """Records the calls (file, function) of the main thread and of other threads in a `with`
    block."""

    def __init__(self):
        self.main, self.others = [], []

    def __enter__(self):
        threading.setprofile(self._called)  # for threads that begin inside the block
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)

    def _called(self, frame, event, _):
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if event == "call" and file.startswith(f"{PACKAGE}/") and function[0] != "<":
            file = Path(file).relative_to(PACKAGE).as_posix()
            if file in BY_THE_CLOCK:
                return
            main = threading.current_thread() is threading.main_thread()
            calls = self.main if main else self.others
            calls.append((file, function))


# -- the pages


class Section:
    """The way in a section of a page."""

    def __init__(self, text):
        block = re.search(r"^```\n(.*?)^```", text, re.S | re.M)[1]
        self.steps = re.findall(r"([\w/]+\.py) (\w+)", block)
        self.kernels = re.findall(r"(\w+\.cu) (\w+)", block)
        self.asked, self.again = (  # a page may leave out an empty list
            set(re.findall(r"`([\w/.]+)`", "".join(re.findall(
                rf"^{label}: (.*?)\.\n", text + "\n", re.S | re.M))))
            for label in ("Asked on the way", "Entered again"))


def sections(name):
    """Returns {heading: Section} of the page docs/<name>.md."""
    parts = re.split(r"^## (.*)\n", (ROOT / "docs" / f"{name}.md").read_text(), flags=re.M)[1:]
    return {h: Section(text) for h, text in zip(parts[::2], parts[1::2]) if "```\n" in text}


# -- questions to a recording


def first_calls(calls):
    """Returns the different calls, in the order of their first time."""
    return list(dict.fromkeys(map(tuple, calls)))


def asked(calls, steps):
    """Returns the entered files that are not on the way."""
    return {file for file, _ in calls} - {file for file, _ in steps}


def again(calls, steps):
    """Returns the files of the way that are entered again after another file of the way."""
    way = {file for file, _ in steps}
    entered = [file for file, _ in groupby(file for file, _ in calls if file in way)]
    return {file for file in entered if entered.count(file) > 1}


# -- the ways


def op_and_back():
    """Returns {heading of docs/way_to_the_kernel.md: Recorder} of F.gelu(F.linear(x, w, b)) and
    its backward."""
    import minidl
    from minidl.nn import functional as F

    x, w, b = (minidl.randn(*s, requires_grad=True) for s in ((4, 8), (16, 8), (16,)))
    g = np.ones((4, 16), np.float32)
    F.gelu(F.linear(x, w, b)).backward(g)  # compiles
    with mock.patch.dict(sys.modules):
        sys.modules.pop("ml_dtypes", None)  # a process that uses bfloat16 calls one more file
        with Recorder() as product:
            y = F.linear(x, w, b)
        with Recorder() as activation:
            z = F.gelu(y)
        with Recorder() as backward:
            z.backward(g)
    return {"Forward: the product": product, "Forward: the activation": activation,
            "Backward": backward}


def step_and_wire():
    """Returns {heading of docs/way_to_the_wire.md: Recorder} of a third step, on each of two ranks.
    """
    import minidl
    from minidl import nn
    from minidl.nn import functional as F

    t = minidl.comm.world()
    minidl.manual_seed(0)
    model = minidl.parallel.DataParallel(nn.MLP(8, 16, 4), t)
    x, labels = np.ones((4, 8), np.float32), np.arange(4)
    for _ in range(3):  # buckets are rebuilt after the first step
        loss = F.cross_entropy(model(x), labels)
        for thread in set(threading.enumerate()) - {threading.main_thread()}:
            thread.join(10)  # ends the last step's communication thread
        with Recorder() as recorded:
            loss.backward()
    model.close()
    return {"From loss.backward() to the wire": recorded}


def shown(recorded, section):
    """Returns the text that a page should have."""
    calls, steps = recorded.main, section.steps if section else []
    order = [f"{file} {function}" for file, function in first_calls(calls)]
    return "\n".join(["calls: " + ", ".join(order),
                      f"Asked on the way: {sorted(asked(calls, steps))}",
                      f"Entered again: {sorted(again(calls, steps))}"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["wire"]:  # on each rank, for test_ways.py: writes a file
        ((heading, r),) = step_and_wire().items()
        what = {"heading": heading, "main": r.main, "others": r.others}
        Path(sys.argv[2], f"{os.getpid()}.json").write_text(json.dumps(what))
    else:
        for heading, r in op_and_back().items():
            print(f"\n## {heading}\n{shown(r, sections('way_to_the_kernel').get(heading))}")
