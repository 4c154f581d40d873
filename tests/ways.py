"""Which files of minidl/ a piece of work enters, in which order: docs/way_to_*.md are held to it.

    python -m tests.ways      prints what the pages should say, to write them anew

A page has sections; each shows one way in a code block, where `file.py function` is a call, and
says below it which other files are asked, and which files of the way are entered again:

    ## Forward: the activation                  with Recorder() as recorded: F.gelu(y)
        cuda/dispatch.py op                    recorded.main == [("cuda/dispatch.py", "op"), ...]
    Asked on the way: `backend.py`.
    Entered again: `function.py`.

Python calls us at every call of a function (sys.setprofile). C code is not seen; comprehensions and
lambdas are left out, as newer Pythons make no call of the former.
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


# A launch asks every 20 ms whether its file has changed: whether it does so in a recording, the
# clock decides.
BY_THE_CLOCK = {"cuda/host/includes.py"}


class Recorder:
    """The calls inside a `with` block, (file, function): of the main thread, and of others."""

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
    """What a section of a page says of its way."""

    def __init__(self, text):
        block = re.search(r"^```\n(.*?)^```", text, re.S | re.M)[1]
        self.steps = re.findall(r"([\w/]+\.py) (\w+)", block)
        self.kernels = re.findall(r"(\w+\.cu) (\w+)", block)
        self.asked, self.again = (  # a page need not say of none
            set(re.findall(r"`([\w/.]+)`", "".join(re.findall(
                rf"^{label}: (.*?)\.\n", text + "\n", re.S | re.M))))
            for label in ("Asked on the way", "Entered again"))


def sections(name):
    """{heading: Section} of the page docs/<name>.md."""
    parts = re.split(r"^## (.*)\n", (ROOT / "docs" / f"{name}.md").read_text(), flags=re.M)[1:]
    return {h: Section(text) for h, text in zip(parts[::2], parts[1::2]) if "```\n" in text}


# -- questions to a recording


def first_calls(calls):
    """The calls in the order in which each happened first."""
    return list(dict.fromkeys(map(tuple, calls)))


def asked(calls, steps):
    """The files entered that are not on the way."""
    return {file for file, _ in calls} - {file for file, _ in steps}


def again(calls, steps):
    """The files of the way that are entered again after another one of the way was."""
    way = {file for file, _ in steps}
    entered = [file for file, _ in groupby(file for file, _ in calls if file in way)]
    return {file for file in entered if entered.count(file) > 1}


# -- the ways


def op_and_back():
    """{heading of docs/way_to_the_kernel.md: Recorder} of F.gelu(F.linear(x, w, b)) and back."""
    import minidl
    from minidl.nn import functional as F

    x, w, b = (minidl.randn(*s, requires_grad=True) for s in ((4, 8), (16, 8), (16,)))
    g = np.ones((4, 16), np.float32)
    F.gelu(F.linear(x, w, b)).backward(g)  # compiles
    with mock.patch.dict(sys.modules):
        sys.modules.pop("ml_dtypes", None)  # a process that uses bfloat16 asks one file more
        with Recorder() as product:
            y = F.linear(x, w, b)
        with Recorder() as activation:
            z = F.gelu(y)
        with Recorder() as backward:
            z.backward(g)
    return {"Forward: the product": product, "Forward: the activation": activation,
            "Backward": backward}


def step_and_wire():
    """{heading of docs/way_to_the_wire.md: Recorder} of a third step; on every rank of two."""
    import minidl
    from minidl import nn
    from minidl.nn import functional as F

    t = minidl.comm.world()
    minidl.manual_seed(0)
    model = minidl.parallel.DataParallel(nn.MLP(8, 16, 4), t)
    x, labels = np.ones((4, 8), np.float32), np.arange(4)
    for _ in range(3):  # buckets are rebuilt after the first
        loss = F.cross_entropy(model(x), labels)
        for thread in set(threading.enumerate()) - {threading.main_thread()}:
            thread.join(10)  # the communication thread of the step before: a new one is recorded
        with Recorder() as recorded:
            loss.backward()
    model.close()
    return {"From loss.backward() to the wire": recorded}


def shown(recorded, section):
    """What a page should say, as text."""
    calls, steps = recorded.main, section.steps if section else []
    order = [f"{file} {function}" for file, function in first_calls(calls)]
    return "\n".join(["calls: " + ", ".join(order),
                      f"Asked on the way: {sorted(asked(calls, steps))}",
                      f"Entered again: {sorted(again(calls, steps))}"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["wire"]:  # on each rank, for test_ways.py: into a file of the folder named
        ((heading, r),) = step_and_wire().items()
        what = {"heading": heading, "main": r.main, "others": r.others}
        Path(sys.argv[2], f"{os.getpid()}.json").write_text(json.dumps(what))
    else:
        for heading, r in op_and_back().items():
            print(f"\n## {heading}\n{shown(r, sections('way_to_the_kernel').get(heading))}")
