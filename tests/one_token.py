"""Changes of one token, drawn at random: does a test see each of them?

    python tests/one_token.py --n 300 --seed 1            draws 300 and plants them one at a time
    python tests/one_token.py --n 20 --files minidl/comm/ring.py minidl/saved.py
    python tests/one_token.py --n 300 --seed 1 --whole    survivors meet the whole suite, too

    <  to  <=       +  to  -       0  to  1       and  to  or       True  to  False
    == to  !=       += to  -=      7  to  8       min  to  max      not x  to  x

A change is planted in a copy of the checkout. The tests that belong to its file run: tests/ mirrors
minidl/, and the docstring of a file names further tests. A change that no test sees is a survivor.
It is a hint and not a fault: some changes alter speed alone, or nothing at all. Look at each
survivor, and write the test that is missing.

Changes in messages of errors, decorators and imports are left out. A run that takes five times as
long as without the change counts as seen.

Source of the idea: DeMillo, Lipton & Sayward, "Hints on test data selection" (1978).
"""

import argparse
import ast
import contextlib
import io
import keyword
import random
import re
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter, namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:  # so that this file can be run as a script
    sys.path.insert(0, str(ROOT))

from tests import mutations  # noqa: E402

FOLDERS = ("comm", "parallel", "ops", "precision", "memory", "optim", "snapshot", "elastic",
           "data", "infer")
OTHERS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
          "+=": "-=", "-=": "+=", "and": "or", "or": "and", "True": "False", "False": "True",
          "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "not": "",
          "0": "1", "1": "0"}

Change = namedtuple("Change", "file line begin end new")  # begin, end: columns of the line


def changes(file, source):
    """Returns every change of one token that may be planted in the source of a file."""
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
    """Returns whether a token ends an operand, so that the + or - after it has two operands."""
    return token.string in (")", "]", "}") or (token.type in (tokenize.NAME, tokenize.NUMBER)
                                              and not keyword.iskeyword(token.string))


def lines_left_out(source):
    """Returns the lines of errors, decorators and imports."""
    lines = set()
    for node in ast.walk(ast.parse(source)):
        parts = [node] if isinstance(node, (ast.Raise, ast.Import, ast.ImportFrom)) else []
        for part in [*parts, *getattr(node, "decorator_list", [])]:
            lines.update(range(part.lineno, part.end_lineno + 1))
    return lines


def planted(source, change):
    """Returns the source with the change in it."""
    lines = source.split("\n")
    lines[change.line - 1] = changed_line(source, change)
    return "\n".join(lines)


def changed_line(source, change):
    line = source.split("\n")[change.line - 1]
    return line[:change.begin] + change.new + line[change.end:]


def own_tests(file, root=ROOT):
    """Returns the tests that belong to a file of minidl/: its twin, and those it names itself.

    Returns the tests of its whole folder where there are none."""
    path = Path(file)
    folder = Path("tests", *path.parts[1:-1])
    names = {(folder / f"test_{path.stem}.py").as_posix()}
    named = re.search(r"Tests?: (.*(?:\n.*)?)", ast.get_docstring(ast.parse(
        (root / file).read_text())) or "")
    for name in re.findall(r"[\w/]*test_\w+\.py", named[1] if named else ""):
        names.add(name if name.startswith("tests/") else (folder / name).as_posix())
    return sorted(name for name in names if (root / name).is_file()) or [folder.as_posix()]


def drawn(n, seed, files):
    """Returns n changes, each of all possible ones with the same probability."""
    every = [change for file in files for change in changes(file, (ROOT / file).read_text())]
    return sorted(random.Random(seed).sample(every, min(n, len(every)))), len(every)


def meet(copy, change, tests, limit_s):
    """Returns what the tests say of the change: caught, late (it hangs), BROKEN or survived."""
    with copy.changed(change.file, lambda source: planted(source, change)):
        word = mutations.verdict(copy.pytest(tests, limit_s=limit_s))
    return {"HANGS": "late", "SURVIVED": "survived"}.get(word, word)


def whole_suite(copy, *arguments):
    """Returns (pytest's exit status, the names of the tests that failed) of all tests."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", *arguments],
        cwd=copy.root, env=mutations.environment(copy.root), capture_output=True, text=True)
    return run.returncode, re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", run.stdout, re.M)


def meets_all_tests(copy, change, red):
    """Returns what all tests say of the change, without those that are red without it."""
    with copy.changed(change.file, lambda source: planted(source, change)):
        status, _ = whole_suite(copy, "-x", *(f"--deselect={test}" for test in red))
    return "caught" if status else "survived"


def main(words):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", nargs="+")
    parser.add_argument("--whole", action="store_true", help="survivors meet the whole suite")
    asked = parser.parse_args(words)
    files = asked.files or sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS
                                  for path in (ROOT / "minidl" / folder).rglob("*.py"))
    some, n_all = drawn(asked.n, asked.seed, files)
    print(f"{len(some)} of {n_all} changes of one token, in {len(files)} files", flush=True)
    words, survivors, limits, red = Counter(), [], {}, None
    start = time.perf_counter()
    with (tempfile.TemporaryDirectory(prefix="minidl-one-token-") as folder,
          contextlib.closing(mutations.Copy(Path(folder).resolve())) as copy):
        for change in some:
            tests = own_tests(change.file)
            if change.file not in limits:
                limits[change.file] = limit_of(copy, tests)
            begin = time.perf_counter()
            limit_s = limits[change.file]
            word = meet(copy, change, tests, limit_s) if limit_s else "RED without it"
            if word == "survived" and asked.whole:
                red = whole_suite(copy)[1] if red is None else red
                word = meets_all_tests(copy, change, red)
            words[word] += 1
            print(f"{word:8} | {time.perf_counter() - begin:5.1f} s | {told(change)}", flush=True)
            if word == "survived":
                survivors.append(change)
    print(f"\n{len(some)} planted, {dict(words)}, {time.perf_counter() - start:.0f} s")
    for change in survivors:
        whom = "any test" if asked.whole else " ".join(own_tests(change.file))
        print(f"{told(change)}\n    not seen by {whom}")
    if red:
        print(f"red without any change, and left out: {' '.join(red)}")


def limit_of(copy, tests):
    """Returns how long these tests may take with a change in seconds; 0 if they fail without."""
    begin = time.perf_counter()
    run = copy.pytest(tests)
    return 0 if run.status else 10 + 5 * (time.perf_counter() - begin)


def told(change):
    source = (ROOT / change.file).read_text()
    line = source.split("\n")[change.line - 1]
    return (f"{change.file}:{change.line}: {line.strip()}   ->   "
            f"{changed_line(source, change).strip()}")


if __name__ == "__main__":
    main(sys.argv[1:])
