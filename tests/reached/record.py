"""Which test file reaches which line of minidl? Recorded once, asked for each change of a line.

Each test file runs in a process of its own, so that lines outside of functions, which run once
when a module is imported, are noted for every file that imports it. sitecustomize.py notes the
lines, in child processes and under mpiexec as well. Nothing is noted in a process that a test
starts with an environment of its own. Record again when tests came, or skip no more.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import mutations

FILE_LIMIT_S = 600  # the slowest test file takes a minute


def record(copy, path):
    """Runs every test file of the copy in its short form, and writes the record to the path."""
    names = sorted(file.relative_to(copy.root).as_posix()
                   for file in (copy.root / "tests").rglob("test_*.py"))
    with ThreadPoolExecutor(2) as pool:
        tests = dict(zip(names, pool.map(lambda name: recorded(copy, name), names), strict=True))
    Path(path).write_text(json.dumps(tests))


def recorded(copy, name):
    """Runs a test file. Returns its time in seconds, the tests that fail, the lines it reaches."""
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder, "noted")
        noted.touch()
        env = mutations.environment(copy.root, short_form=True)
        env["PYTHONPATH"] = f"{copy.root / 'tests/reached'}{os.pathsep}{env['PYTHONPATH']}"
        env["MINIDL_REACHED"] = str(noted)
        begin = time.perf_counter()
        run = subprocess.run(
            ["timeout", str(FILE_LIMIT_S), sys.executable, "-m", "pytest", "-q", name],
            cwd=copy.root, env=env, capture_output=True, text=True)
        time_s = time.perf_counter() - begin
        reached = {}
        for place in sorted(set(noted.read_text().split())):
            file, line = place.rsplit(":", 1)
            reached.setdefault(f"minidl/{file}", []).append(int(line))
    red = re.findall(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", run.stdout, re.M)
    print(f"{time_s:5.1f} s | {name} {' '.join(red)}", flush=True)
    return {"time_s": time_s, "red": red, "reached": reached}


def tests_that_reach(tests, file, line, source):
    """Returns the test files that reach the statement at a line, the quickest first."""
    lines = lines_of_statement(source, line)
    found = [name for name, test in tests.items() if lines & {*test["reached"].get(file, ())}]
    return sorted(found, key=lambda name: tests[name]["time_s"])


def lines_of_statement(source, line):
    """Returns the lines of which one runs if the statement at this line does.

    Returns the body of a function for its head: a default value is used there. Returns the bodies
    of all functions of the file for a statement outside of them, a constant or a table: they use
    it, and every import would run the statement itself."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree)
                 if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inside = [node for node in functions if node.lineno <= line <= node.end_lineno]
    if not inside:
        bodies = {number for node in functions for number in body(node)}
        return bodies or {*range(1, source.count("\n") + 2)}
    if line not in body(inside[-1]):
        return {*body(inside[-1])}
    statements = [node for node in ast.walk(inside[-1])
                  if isinstance(node, ast.stmt) and node.lineno <= line <= node.end_lineno]
    innermost = statements[-1]  # ast.walk gives what is around before what is inside
    end = innermost.body[0].lineno if hasattr(innermost, "body") else innermost.end_lineno + 1
    return {line, *range(innermost.lineno, end)}


def body(function):
    return range(function.body[0].lineno, function.end_lineno + 1)


def arguments(tests, names):
    """Returns (pytest's arguments for these files without the tests that are red, a limit of time
    in seconds: a busy machine needs a minute for the shortest of them)."""
    red = [f"--deselect={test}" for name in names for test in tests[name]["red"]]
    return [*names, *red], 60 + 5 * sum(tests[name]["time_s"] for name in names)
