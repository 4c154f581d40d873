"""Planted bugs: mistakes that a tired expert could make, and the tests that see them.

    python tests/mutations.py              plants every bug, one at a time, and runs its test
    python tests/mutations.py ring loss    those whose name or file contains one of these words
    python tests/mutations.py --table      writes the table in tests/README.md

The bugs are planted in a copy of the checkout, never in the checkout itself. A test that passes
with its bug is reported as SURVIVED and the exit status is 1: then the test is to be mended. The
lists are in mutations_core.py, mutations_kernels.py and mutations_comm.py; that their texts and
tests exist is checked by tests/test_mutations.py, which is quick, so that they cannot rot.

Source of the idea: DeMillo, Lipton & Sayward, "Hints on test data selection" (1978).
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
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
        # A .pyc is usually trusted by its time and size, which a quick edit may keep: here by hash.
        self.python("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "minidl")
        probe = self.python("-c", "import minidl; print(minidl.__file__)")
        if not Path(probe.stdout.strip()).is_relative_to(self.root):
            raise RuntimeError(f"the copy in {self.root} imports {probe.stdout.strip()}, want its "
                               f"own minidl\n{probe.stderr}")

    def python(self, *arguments, on_stand_in=False):
        """Run Python in the copy; TimeoutExpired after RUN_LIMIT_S, and nothing is left running."""
        path = [self.root / "tests" / "strict_cupy"] * on_stand_in + [self.root]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)),
               "PYTHONDONTWRITEBYTECODE": "1"}
        pipe = subprocess.PIPE
        with subprocess.Popen([sys.executable, *arguments], cwd=self.root, env=env, stdout=pipe,
                              stderr=pipe, text=True, start_new_session=True) as child:
            try:
                out, err = child.communicate(timeout=RUN_LIMIT_S)
            except BaseException:
                os.killpg(child.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)

    def pytest(self, tests, on_stand_in=False):
        try:
            done = self.python("-m", "pytest", *tests, "-x", "-q", "-p", "no:cacheprovider",
                               "--timeout", str(TEST_LIMIT_S), on_stand_in=on_stand_in)
        except subprocess.TimeoutExpired:
            return Run(None, False, False, "", f"no end within {RUN_LIMIT_S} s")
        failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.M)
        return Run(done.returncode, *(bool(re.search(rf"\d+ {word}", done.stdout))
                                      for word in ("passed", "skipped")),
                   failed[1] if failed else "", done.stdout[-4000:] + done.stderr[-2000:])

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
    # 1: a test failed. Anything else non-zero (2: not even imported) is no plausible bug.
    if run.status == 1:
        return "caught"
    return {0: "SURVIVED", None: "HANGS"}.get(run.status, "BROKEN")


def main(words):
    mutations = every_mutation()
    if words == ["--table"]:
        return write_table(mutations)
    chosen = [m for m in mutations
              if not words or any(w in m.name or w in m.file or w in m.test for w in words)]
    bad = 0
    with tempfile.TemporaryDirectory(prefix="minidl-mutations-") as folder:
        copy = Copy(Path(folder).resolve())
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
