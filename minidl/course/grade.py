'''Grading a student's file: `minidl check 06` runs tutorials/graders/06_ring.py on work/06_ring.py.

A grader judges in this process, and the student's code runs in another one (student.py), so no
exit status and no word of the student's process decides: only what the grader finds in the numbers
that came back. It is a generator that is given the student, yields a line for every check that
held, and raises Wrong, with a message that helps, at the first that did not:

    def doubled(module, x):                 runs in the student's process
        return module.double(x)

    def grade_06a(student):
        """What is checked, in a sentence."""
        if student.run(doubled, 3) != 6:
            raise Wrong("double(3) should be 6")
        yield "x = 3"

A grader must not need a solution: a course may hand out tutorials that are all blank.

A grader's file also has wrong answers that it must reject, WRONG = {"06a": {name of the mistake:
(code, text of the message)}}. The code may be {right: wrong}: a change of the solution's.

Test: tests/course/test_exercise.py, test_answers.py, tests/tutorials/test_exercises.py
'''

import importlib.util
import textwrap

from minidl.course.exercise import ROOT, WORK, ExerciseError, body, existing, fill, regions, sources
from minidl.course.student import Wrong  # noqa: F401: graders import it from here
from minidl.course.student import Apart, Failed, NotGraded, explain, load

DEADLINE = 60  # seconds for one check: the slowest takes a tenth of that


def grader_file(number, root=ROOT):
    return root / "tutorials" / "graders" / sources(number, root)[0].name


def grader(number, root=ROOT):
    """The grader of a tutorial, as a module."""
    return load(grader_file(number, root))


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
    """`minidl check NN` or `minidl check NNa`: grade the student's file; 0 if all pass, else 1.

    After `deadline` seconds the student's process is stopped, and shows where it was."""
    graders, file = grader(number[:2], root), grader_file(number[:2], root)
    names = [name[len("grade_") :] for name in vars(graders) if name.startswith("grade_" + number)]
    if not names:
        raise ExerciseError(f"there is no exercise {number}; run: minidl exercise")
    path = existing(work / file.name, number[:2])
    if hasattr(graders, "simulate") and importlib.util.find_spec("greenlet") is None:
        raise ExerciseError(f"exercise {number} is graded on simulated ranks, which need greenlet. "
                            "It is not installed: pip install greenlet")
    print(f"checking {path}", flush=True)
    student = Apart(file, path, deadline)
    try:
        return grade(graders, names, student, path)
    finally:
        student.close()


def grade(graders, names, student, path):
    """Run the graders of these exercises on a student; the exit status."""
    try:
        student.loaded()
    except Failed as error:
        print(f"FAILED: the file cannot be imported.\n{error}")
        return 1
    except NotGraded as error:
        print(f"not graded: {error}")
        return 1
    said = dict.fromkeys(names, "not graded")
    for name in names:
        grade_fn = getattr(graders, "grade_" + name)
        print(f"\nexercise {name}: {grade_fn.__doc__.strip().splitlines()[0]}", flush=True)
        try:
            for held in grade_fn(student):
                print(f"  ok    {held}", flush=True)
            said[name] = "passed"
        except NotGraded as error:
            print(f"  not graded: {error}", flush=True)
            break  # the process is gone: the other exercises have nobody to ask
        except Exception as error:
            print("  FAILED\n" + explain(error, path), flush=True)
            said[name] = "FAILED"
    print("\n" + ", ".join(f"{name} {word}" for name, word in said.items()), flush=True)
    return 0 if all(word == "passed" for word in said.values()) else 1
