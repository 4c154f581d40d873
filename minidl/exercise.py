'''Exercises are regions of the tutorials: blank them, check a student's, show the solution.

    # >>> exercise 06a: reduce-scatter          (`//` instead of `#` in a .cu file)
    # What to do, in a comment: it stays in the blank.
    for s in range(p - 1):                      The solution; the blank raises an error instead.
    # <<<

    minidl exercise 06    tutorials/06_ring.py with its regions blanked  ->  work/06_ring.py
    minidl check 06       runs tutorials/graders/06_ring.py against work/06_ring.py
    minidl solution 06    the difference between work/06_ring.py and tutorials/06_ring.py

So there is one source of truth, the tutorial that runs. A grader is a generator that is given the
student's file as a module, yields a line for every check that held, and raises Wrong, with a
message that helps, at the first that did not:

    def grade_06a(student):
        """What is checked, in a sentence."""
        yield "3 ranks, 10 elements"

Beside it stand the wrong answers that it must reject, WRONG = {"06a": {"name": (code, "words of the
message")}}.

Test: tests/test_exercise.py (the machinery), tests/tutorials/test_exercises.py (every solution,
blank and wrong answer)
'''

import difflib
import faulthandler
import importlib.util
import os
import re
import signal
import subprocess
import sys
import traceback
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = Path("work")
DEADLINE = 60  # seconds for one check: the slowest takes a tenth of that, a hang takes for ever

_START = re.compile(r"^\s*(?:#|//) >>> exercise (\d\d[a-z]): (.+?)\s*$")
_STOP = re.compile(r"^\s*(?:#|//) <<<\s*$")

# A region is lines[start:stop]; `start` counts from 0, so it is also the line number of its mark.
Region = namedtuple("Region", "id title start stop")


class Wrong(AssertionError):
    """The student's answer is wrong, and this says how."""


class ExerciseError(Exception):
    """The command cannot do that; the message says why and what to do."""


# -- regions


def regions(text, name="the file"):
    """The exercises in `text`, in order."""
    found, opened = [], None
    for i, line in enumerate(text.splitlines()):
        start = _START.match(line)
        if start and opened:
            raise ExerciseError(
                f"{name}:{i + 1}: exercise {start[1]} begins inside exercise {opened[0]}"
            )
        if start:
            opened = (start[1], start[2], i + 1)
        elif _STOP.match(line):
            if not opened:
                raise ExerciseError(f"{name}:{i + 1}: '<<<' closes no exercise")
            found.append(Region(*opened, i))
            opened = None
    if opened:
        raise ExerciseError(
            f"{name}:{opened[2]}: exercise {opened[0]} has no '<<<' line that ends it"
        )
    return found


def body(text, region):
    """The lines of a region, as one string."""
    return "".join(text.splitlines(keepends=True)[region.start : region.stop])


def fill(text, answers):
    """`text` with the regions in `answers`, {id: code}, replaced; code is indented to fit."""
    lines = text.splitlines(keepends=True)
    for region in reversed(regions(text)):
        if region.id in answers:
            mark = lines[region.start - 1]
            indent = mark[: len(mark) - len(mark.lstrip())]
            code = answers[region.id].strip("\n").splitlines()
            lines[region.start : region.stop] = [(indent + line).rstrip() + "\n" for line in code]
    return "".join(lines)


def blank(text):
    """`text` with every region emptied: its opening comment, then an error until it is written."""
    return fill(text, {region.id: _blank_body(text, region) for region in regions(text)})


def _blank_body(text, region):
    lines = body(text, region).splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    task = []
    for line in lines:
        if not line.strip().startswith(("#", "//")):
            break
        task.append(line[indent:])
    message = f"exercise {region.id} ({region.title}) is not written yet"
    is_cuda = text.splitlines()[region.start - 1].strip().startswith("//")
    task.append(f'#error "{message}"' if is_cuda else f'raise NotImplementedError("{message}")')
    return "\n".join(task)


# -- files


def tutorials(root=ROOT):
    """{number: path} of the tutorials that have an exercise, there or in a kernel."""
    folder = root / "tutorials"
    if not folder.is_dir():
        raise ExerciseError(
            f"there is no folder {folder}: exercises need a clone of the repository, "
            "installed with pip install -e"
        )
    in_kernels = {r.id[:2] for k in (root / "kernels").glob("*.cu") for r in regions(_read(k), k)}
    return {
        path.name[:2]: path
        for path in sorted(folder.glob("[0-9][0-9]_*.py"))
        if regions(_read(path), path) or path.name[:2] in in_kernels
    }


def sources(number, root=ROOT):
    """The files with exercises of this number: the tutorial, then any kernels."""
    known = tutorials(root)
    if number not in known:
        raise ExerciseError(f"tutorial {number} has no exercise; these have: {', '.join(known)}")
    kernels = sorted((root / "kernels").glob("*.cu"))
    return [
        known[number],
        *(k for k in kernels if any(r.id[:2] == number for r in regions(_read(k), k))),
    ]


def grader(number, root=ROOT):
    """The grader of a tutorial, as a module."""
    return load(root / "tutorials" / "graders" / sources(number, root)[0].name)


def load(path):
    """Run a Python file as a module; its name may start with a digit."""
    name = "exercise_" + re.sub(r"\W", "_", str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as `import` does: the file's functions must find their own module
    spec.loader.exec_module(module)
    return module


def _read(path):
    return Path(path).read_text(encoding="utf-8")


# -- the three commands; each returns the exit status


def write(number, force=False, root=ROOT, work=WORK):
    """`minidl exercise NN`: write the blanked files; never over a student's work unless `force`."""
    pairs = [(source, work / source.name) for source in sources(number, root)]
    for source, path in pairs:
        if path.exists() and _read(path) != blank(_read(source)) and not force:
            raise ExerciseError(
                f"{path} has been edited; nothing was written. To start again and lose it: "
                f"minidl exercise {number} --force"
            )
    work.mkdir(exist_ok=True)
    for source, path in pairs:
        text = blank(_read(source))
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
        for region in regions(text):
            print(f"  exercise {region.id}, line {region.start}: {region.title}")
    print(f"Write what is missing between '>>>' and '<<<', then: minidl check {number}")
    return 0


def listing(root=ROOT):
    """`minidl exercise`: what there is."""
    for number in tutorials(root):
        for source in sources(number, root):
            for region in regions(_read(source)):
                print(f"{region.id}  {region.title:40s} {source.relative_to(root)}")
    return 0


def solution(number, root=ROOT, work=WORK):
    """`minidl solution NN`: from the student's file to the tutorial, as a diff."""
    same = True
    for source in sources(number, root):
        path = work / source.name
        theirs, ours = _read(_existing(path, number)), _read(source)
        sys.stdout.writelines(
            difflib.unified_diff(
                theirs.splitlines(True),
                ours.splitlines(True),
                str(path),
                str(source.relative_to(root)),
            )
        )
        same = same and theirs == ours
    if same:
        print("No difference.")
    return 0


def _existing(path, number):
    if not path.exists():
        raise ExerciseError(f"{path} does not exist; write it first: minidl exercise {number}")
    return path


def check(number, root=ROOT, work=WORK, deadline=DEADLINE):
    """`minidl check NN` or `minidl check NNa`: grade the student's file alone; 0 if all pass.

    In a process of its own: after `deadline` seconds it is stopped and shows where it was."""
    path = _existing(work / sources(number[:2], root)[0].name, number[:2])
    command = [sys.executable, "-m", "minidl.exercise", number, str(root), str(path), str(deadline)]
    # a session of its own, so that whatever the student's code started ends with it
    child = subprocess.Popen(command, start_new_session=True)
    try:
        return child.wait(timeout=deadline)
    except subprocess.TimeoutExpired:
        print(
            f"FAILED: no answer within {deadline} s. The stack above shows where it was: an "
            "endless loop?"
        )
        return 1
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


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
        print("FAILED: the file cannot be imported.\n" + _explain(error, path))
        return 1
    passed = {
        name: _grade_one(getattr(graders, "grade_" + name), name, student, path) for name in names
    }
    print("\n" + ", ".join(f"{name} {'passed' if ok else 'FAILED'}" for name, ok in passed.items()))
    return 0 if all(passed.values()) else 1


def _grade_one(grade_fn, name, student, path):
    print(f"\nexercise {name}: {grade_fn.__doc__.strip().splitlines()[0]}", flush=True)
    try:
        for held in grade_fn(student):
            print(f"  ok    {held}", flush=True)
    except Exception as error:
        print("  FAILED\n" + _explain(error, path), flush=True)
        return False
    return True


def _explain(error, path):
    """What went wrong, for a student: no frames of the grader or of the framework."""
    while error.__cause__ is not None and not isinstance(error, Wrong):
        error = error.__cause__  # RankFailed: the rank's own exception follows
    if isinstance(error, NotImplementedError):  # the blank's: its text says all
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        return f"    {Path(path).name}, line {line}: {error}"
    lines = (
        []
        if isinstance(error, Wrong)
        else [
            f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}: {frame.line}"
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == os.path.abspath(path) or frame.filename == str(path)
        ]
    )
    if isinstance(error, SyntaxError):
        lines.append(f"{Path(path).name}, line {error.lineno}: {(error.text or '').strip()}")
    kind = "" if isinstance(error, Wrong) else f"{type(error).__name__}: "
    return "\n".join(
        "    " + line for text in [*lines, kind + str(error)] for line in text.splitlines()
    )


def main(argv):
    number, root, path, deadline = argv
    faulthandler.dump_traceback_later(max(float(deadline) - 0.5, 0.1))  # before the parent ends us
    try:
        return grade(number, Path(root), Path(path))
    except ExerciseError as error:
        print(f"minidl check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    # as an imported module: the graders' `Wrong` is minidl.exercise.Wrong, not __main__.Wrong
    from minidl import exercise

    sys.exit(exercise.main(sys.argv[1:]))
