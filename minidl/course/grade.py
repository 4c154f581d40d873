'''Grading a student's file: `minidl check 06` runs tutorials/graders/06_ring.py on work/06_ring.py.

A grader is a generator that is given the student's file as a module, yields a line for every check
that held, and raises Wrong, with a message that helps, at the first that did not:

    def grade_06a(student):
        """What is checked, in a sentence."""
        yield "3 ranks, 10 elements"

`solution(__file__)` is the tutorial itself: a grader takes from it helpers, and functions that
another exercise asks for.

A grader's file also has the wrong answers that it must reject, WRONG = {"06a": {name of the
mistake: (code, text of the message)}}. The code may be {right: wrong}: a change of the solution's.

Test: tests/course/test_exercise.py, tests/tutorials/test_exercises.py (every solution, blank and
wrong answer)
'''

import contextlib
import faulthandler
import functools
import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from pathlib import Path

from minidl.course.exercise import ROOT, WORK, ExerciseError, body, existing, fill, regions, sources

DEADLINE = 60  # seconds for one check: the slowest takes a tenth of that


class Wrong(AssertionError):
    """The student's answer is wrong; the message says how."""


def load(path):
    """Run a Python file as a module; its name may start with a digit."""
    name = "exercise_" + re.sub(r"\W", "_", str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as `import` does: the file's functions must find their own module
    spec.loader.exec_module(module)
    return module


def grader(number, root=ROOT):
    """The grader of a tutorial, as a module."""
    return load(root / "tutorials" / "graders" / sources(number, root)[0].name)


@functools.cache
def solution(file):
    """The tutorial of the grader in `file`, as a module."""
    return load(Path(file).parent.parent / Path(file).name)


def mistaken(text, name, change):
    """`text`, a tutorial's, with a mistake in the region `name`: its code, or {right: wrong}."""
    if isinstance(change, dict):
        found = [region for region in regions(text) if region.id == name]
        code = textwrap.dedent("".join(body(text, region) for region in found))
        for right, wrong in change.items() if found else ():
            if code.count(right) != 1:
                raise ValueError(f"{name}: {right!r} is {code.count(right)} times in the solution")
            code = code.replace(right, wrong)
        change = code
    return fill(text, {name: change})


def check(number, root=ROOT, work=WORK, deadline=DEADLINE):
    """`minidl check NN` or `minidl check NNa`: grade the student's file alone; 0 if all pass.

    In a process of its own: after `deadline` seconds it is stopped and shows where it was."""
    path = existing(work / sources(number[:2], root)[0].name, number[:2])
    arguments = [number, str(root), str(path), str(deadline)]
    command = [sys.executable, "-m", "minidl.course.grade", *arguments]
    # a session, and so a process group, of its own: all processes of the student's code end with it
    child = subprocess.Popen(command, start_new_session=True)
    start = time.monotonic()
    try:
        status = child.wait(timeout=2 * deadline + 10)  # by then it should have ended itself
    except subprocess.TimeoutExpired:
        status = 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    if status and time.monotonic() - start > deadline:
        print(f"FAILED: no answer within {deadline} s. The stack above shows where it was: an "
              "endless loop?")
    return status


def grade(number, root, path):
    """Run the graders of `number` ("06": all, "06a": one) on a file; the exit status."""
    graders = grader(number[:2], root)
    names = [name[len("grade_") :] for name in vars(graders) if name.startswith("grade_" + number)]
    if not names:
        raise ExerciseError(f"there is no exercise {number}; run: minidl exercise")
    print(f"checking {path}")
    try:
        student = load(path)
    except Exception as error:
        print("FAILED: the file cannot be imported.\n" + explain(error, path))
        return 1
    passed = dict.fromkeys(names, True)
    for name in names:
        grade_fn = getattr(graders, "grade_" + name)
        print(f"\nexercise {name}: {grade_fn.__doc__.strip().splitlines()[0]}", flush=True)
        try:
            for held in grade_fn(student):
                print(f"  ok    {held}", flush=True)
        except Exception as error:
            print("  FAILED\n" + explain(error, path), flush=True)
            passed[name] = False
    print("\n" + ", ".join(f"{name} {'passed' if ok else 'FAILED'}" for name, ok in passed.items()))
    return 0 if all(passed.values()) else 1


def explain(error, path):
    """What went wrong, for a student: no frames of the grader or of the framework."""
    while error.__cause__ is not None and not isinstance(error, Wrong):
        error = error.__cause__  # RankFailed: the rank's own exception follows
    if isinstance(error, NotImplementedError):  # the blank's: its text says all
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        return f"    {Path(path).name}, line {line}: {error}"
    lines = [str(error)]
    if not isinstance(error, Wrong):
        lines = [f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
                 for frame in traceback.extract_tb(error.__traceback__)
                 if frame.filename in (os.path.abspath(path), str(path))]
        if isinstance(error, SyntaxError):
            lines.append(f"{Path(path).name}, line {error.lineno}: {(error.text or '').strip()}")
        lines.append(f"{type(error).__name__}: {error}")
    return textwrap.indent("\n".join(lines), "    ")


def main(argv):
    number, root, path, deadline = argv
    faulthandler.dump_traceback_later(float(deadline), exit=True)  # prints the stack and exits
    try:
        return grade(number, Path(root), Path(path))
    except ExerciseError as error:
        print(f"minidl check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    # as an imported module: the graders' `Wrong` is minidl.course.grade.Wrong, not __main__.Wrong
    from minidl.course.grade import main as imported_main

    sys.exit(imported_main(sys.argv[1:]))
