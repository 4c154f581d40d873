'''Grades a student's file: `minidl check 07` runs tutorials/graders/07_ring.py on work/07_ring.py.

A grader judges in this process. The student's code runs in another process (student.py). The exit
status and the output of that process do not count: the grader decides from the values that the
process returns. A grader is a generator function. Its argument is the student's process. A grader
yields a line for every check that passed. At the first check that did not pass, it raises Wrong,
with a message that helps the student:

    def doubled(module, x):                 runs in the student's process
        return module.double(x)

    def grade_07a(student):
        """What is checked, in a sentence."""
        if student.run(doubled, 3) != 6:
            raise Wrong("double(3) should be 6")
        yield "x = 3"

A grader must not need a solution, because the tutorials of a course may all be blank. Functions
that contain the answer stand between `# >>> reference` and `# <<<`. A grader calls these functions
last, after it has checked all properties and counters. A handout (handout.py) does not have these
functions. So the checks that need these functions run only with the course's folder of answers:
`answers/`, or `check --answers FOLDER`.

Inputs are drawn from SEED + a number. With `check --student NAME` each student has different
inputs.

A grader's file also has wrong answers that it must reject: WRONG = {"07a": {name of the mistake:
(code, text of the message)}}. `code` is the whole code of the exercise, or {right: wrong}. In the
second case `right` in the solution is replaced by `wrong`.

Test: tests/course/test_exercise.py, test_answers.py, tests/tutorials/test_exercises.py
'''

import configparser
from typing import NamedTuple

import numpy as np

from minidl.course.exercise import ROOT, WORK, ExerciseError, existing, sources
from minidl.course.student import Wrong  # noqa: F401: graders import Wrong from here
from minidl.course.student import (
    Apart, Failed, Hidden, NotGraded, explain, load_grader, printable, seed_of,
)
from minidl.text import tr

DEADLINE = 60  # seconds for one check; the slowest check takes a tenth of this
POINTS = 10.0  # for an exercise without points in course.cfg


class Result(NamedTuple):
    """The result of one exercise."""
    exercise: str
    checked: str  # what is checked, in a sentence
    verdict: str  # "passed", "FAILED" or "not graded"
    held: tuple = ()  # the checks that passed
    message: str = ""  # why the exercise did not pass, or which part was not checked
    points: float = 0.0
    of: float = POINTS  # the points of a right answer


def kind_of(value):
    """Returns a description of `value` for a message. value: the result of a student's function."""
    if value is None:
        return "None: is there a return?"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    return f"{type(value).__name__} {value!r:.40}"


def apart(wanted, got):
    """Returns two different numbers as texts, for a message "should be ..., is ...". The texts have
    6 digits. They have more digits if the texts with 6 digits are equal."""
    for digits in range(6, 18):
        texts = f"{wanted:.{digits}g}", f"{got:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def grader_file(number, root=ROOT):
    return root / "tutorials" / "graders" / sources(number, root)[0].name


def grader(number, root=ROOT, answers=None, seed=0):
    """Returns the grader of a tutorial, as a module.

    The grader has the reference answers if they are in the folder `answers` or, by default, in
    root/answers. Raises ExerciseError if `answers` is given but has no reference answers."""
    file = grader_file(number, root)
    private = (answers or root / "answers") / "graders" / file.name
    if answers and not private.exists():
        raise ExerciseError(f"--answers {answers}: there is no file {private}. `minidl handout` "
                            "writes the folder of answers next to the handout")
    return load_grader(private if private.exists() else file, seed)


def settings(root=ROOT):
    """Returns the settings in a handout's course.cfg: which tutorials are graded, and the points of
    each exercise. Returns empty settings if there is no such file."""
    found = configparser.ConfigParser()
    found.read(root / "course.cfg", encoding="utf-8")
    return found


def points_of(name, root=ROOT):
    return settings(root).getfloat("points", name, fallback=POINTS)


def check(number, root=ROOT, work=WORK, deadline=DEADLINE, **how):
    """`minidl check NN` or `NNa`: grades the student's file. Returns 0 if all exercises pass,
    otherwise 1."""
    found = results(number, root, work, deadline, **how)
    return 0 if all(result.verdict == "passed" for result in found) else 1


def results(number, root=ROOT, work=WORK, deadline=DEADLINE, answers=None, student=None):
    """Returns a Result for each exercise of `number`, and prints it. number: "07" for all exercises
    of tutorial 07, or "07a" for one.

    After `deadline` seconds the student's process prints its stack, and ends. The next exercise
    then has a new process, with `deadline` seconds.
    answers: the folder of the course's answers. student: a name. The inputs are drawn from a seed
    that depends on the name, so each student has different inputs."""
    seed, file = seed_of(student), grader_file(number[:2], root)
    graders = grader(number[:2], root, answers, seed)
    names = [name[len("grade_") :] for name in vars(graders) if name.startswith("grade_" + number)]
    if not names:
        raise ExerciseError(f"there is no exercise {number}. For a list run: minidl exercise")
    path = existing(work / file.name, number[:2])
    print(tr(f"checking {path}"), flush=True)
    theirs = Apart(file, path, deadline, seed=seed)  # `file` has no reference answers
    try:
        return grade(graders, names, theirs, path, root)
    finally:
        theirs.close()


def grade(graders, names, student, path, root=ROOT):
    """Grades the exercises `names` of one student. Returns a list with a Result for each exercise.

    graders: the grader's module. student: the student's process, an object of the class `Apart`
    (student.py). path: the student's file."""
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
    ended = False
    for name, result in found.items():
        if ended:  # an endless loop in one exercise must not cost the points of the next one
            student.restart()
        print("\n" + tr(f"exercise {name}: {result.checked}"), flush=True)
        found[name] = result = _graded(getattr(graders, "grade_" + name), student, path, result)
        ended = result.verdict == "not graded"
    print("\n" + ", ".join(f"{r.exercise} {tr(r.verdict)}" for r in found.values()), flush=True)
    return list(found.values())


def _graded(grade_fn, student, path, result):
    """Grades one exercise by grade_fn. Prints each check after it has run. result: the exercise's
    Result without a verdict. Returns a new Result, which has the verdict."""
    held = []
    try:
        for line in grade_fn(student):
            print(f"  ok    {tr(line)}", flush=True)
            held.append(line)
        why, verdict = "", "passed"
    except Hidden:
        why, verdict = "the course compares the results with its own answers later", "passed"
        print(f"  ...   {tr(why)}", flush=True)
    except NotGraded as error:
        why, verdict = str(error), "not graded"
        print(tr(f"  not graded: {error}"), flush=True)
    except Exception as error:
        why, verdict = printable(explain(error, path)), "FAILED"
        print(f"  {tr('FAILED')}\n{tr(why)}", flush=True)
    return result._replace(verdict=verdict, held=tuple(held), message=why,
                           points=result.of if verdict == "passed" else 0.0)
