'''Grading a student's file: `minidl check 07` runs tutorials/graders/07_ring.py on work/07_ring.py.

A grader judges in this process, and the student's code runs in another one (student.py), so no
exit status and no word of the student's process decides: only what the grader finds in the numbers
that came back. It is a generator that is given the student, yields a line for every check that
held, and raises Wrong, with a message that helps, at the first that did not:

    def doubled(module, x):                 runs in the student's process
        return module.double(x)

    def grade_07a(student):
        """What is checked, in a sentence."""
        if student.run(doubled, 3) != 6:
            raise Wrong("double(3) should be 6")
        yield "x = 3"

A grader must not need a solution: a course may hand out tutorials that are all blank. What would
tell the answer stands between `# >>> reference` and `# <<<`, functions that are called after all
properties and counters were checked: a handout (handout.py) has no such functions, and what needs
them is checked where the course's folder of answers is, `answers/` or `check --answers FOLDER`.

Inputs are drawn from SEED + a number: `check --student NAME` gives each student others.

A grader's file also has wrong answers that it must reject, WRONG = {"07a": {name of the mistake:
(code, text of the message)}}. The code may be {right: wrong}: a change of the solution's.

Test: tests/course/test_exercise.py, test_answers.py, tests/tutorials/test_exercises.py
'''

import configparser
from typing import NamedTuple

import numpy as np

from minidl.course.exercise import ROOT, WORK, ExerciseError, existing, sources
from minidl.course.student import Wrong  # noqa: F401: graders import it from here
from minidl.course.student import (
    Apart, Failed, Hidden, NotGraded, explain, load_grader, printable, seed_of,
)
from minidl.text import tr

DEADLINE = 60  # seconds for one check: the slowest takes a tenth of that
POINTS = 10.0  # of an exercise that course.cfg gives none


class Result(NamedTuple):
    """What came of one exercise."""
    exercise: str
    checked: str  # what is checked, in a sentence
    verdict: str  # "passed", "FAILED" or "not graded"
    held: tuple = ()  # the checks that held
    message: str = ""  # why it did not pass, or what was not checked
    points: float = 0.0
    of: float = POINTS


def kind_of(value):
    """Returns in a few words what a student's function returned, for a message."""
    if value is None:
        return "None: is there a return?"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    return f"{type(value).__name__} {value!r:.40}"


def grader_file(number, root=ROOT):
    return root / "tutorials" / "graders" / sources(number, root)[0].name


def grader(number, root=ROOT, answers=None, seed=0):
    """The grader of a tutorial, as a module: with reference answers where they are."""
    file = grader_file(number, root)
    private = (answers or root / "answers") / "graders" / file.name
    if answers and not private.exists():
        raise ExerciseError(f"--answers {answers}: there is no {private}. It is made by `minidl "
                            "handout`, beside the handout")
    return load_grader(private if private.exists() else file, seed)


def settings(root=ROOT):
    """course.cfg of a handout: its tutorials, points; empty where there is none."""
    found = configparser.ConfigParser()
    found.read(root / "course.cfg", encoding="utf-8")
    return found


def points_of(name, root=ROOT):
    return settings(root).getfloat("points", name, fallback=POINTS)


def check(number, root=ROOT, work=WORK, deadline=DEADLINE, **how):
    """`minidl check NN` or `minidl check NNa`: grade the student's file; 0 if all pass, else 1."""
    found = results(number, root, work, deadline, **how)
    return 0 if all(result.verdict == "passed" for result in found) else 1


def results(number, root=ROOT, work=WORK, deadline=DEADLINE, answers=None, student=None):
    """A Result for each exercise that "07" or "07a" means; all is printed, too.

    After `deadline` seconds the student's process is stopped, and shows where it was. answers: a
    folder of the course's answers; student: a name, for inputs of one's own."""
    seed, file = seed_of(student), grader_file(number[:2], root)
    graders = grader(number[:2], root, answers, seed)
    names = [name[len("grade_") :] for name in vars(graders) if name.startswith("grade_" + number)]
    if not names:
        raise ExerciseError(f"there is no exercise {number}; run: minidl exercise")
    path = existing(work / file.name, number[:2])
    print(tr(f"checking {path}"), flush=True)
    theirs = Apart(file, path, deadline, seed=seed)  # the handout's file: it shows no reference
    try:
        return grade(graders, names, theirs, path, root)
    finally:
        theirs.close()


def grade(graders, names, student, path, root=ROOT):
    """Run the graders of these exercises on a student: a Result for each."""
    found = {name: Result(name, getattr(graders, "grade_" + name).__doc__.strip().splitlines()[0],
                          "not graded", of=points_of(name, root)) for name in names}
    try:
        student.loaded()
    except Failed as error:
        print(tr(f"FAILED: the file cannot be imported.\n{error}"))
        return [r._replace(verdict="FAILED", message=str(error)) for r in found.values()]
    except NotGraded as error:
        print(tr(f"not graded: {error}"))
        return [r._replace(message=str(error)) for r in found.values()]
    for name, result in found.items():
        print("\n" + tr(f"exercise {name}: {result.checked}"), flush=True)
        found[name] = result = _graded(getattr(graders, "grade_" + name), student, path, result)
        if result.verdict == "not graded":
            break  # the process is gone: the other exercises have nobody to ask
    print("\n" + ", ".join(f"{r.exercise} {tr(r.verdict)}" for r in found.values()), flush=True)
    return list(found.values())


def _graded(grade_fn, student, path, result):
    """The result of one exercise, printed as it comes."""
    held = []
    try:
        for line in grade_fn(student):
            print(f"  ok    {tr(line)}", flush=True)
            held.append(line)
        why, verdict = "", "passed"
    except Hidden:
        why, verdict = "its results are compared with the course's when it is graded", "passed"
        print(f"  ...   {tr(why)}", flush=True)
    except NotGraded as error:
        why, verdict = str(error), "not graded"
        print(tr(f"  not graded: {error}"), flush=True)
    except Exception as error:
        why, verdict = printable(explain(error, path)), "FAILED"
        print(f"  {tr('FAILED')}\n{tr(why)}", flush=True)
    return result._replace(verdict=verdict, held=tuple(held), message=why,
                           points=result.of if verdict == "passed" else 0.0)
