'''Reports the results of exercises, in every form that a course needs.

    minidl check                        grades the exercises of course.cfg. If it is missing,
                                        grades all exercises in work/
    minidl check 07 --json -            writes JSON to the standard output; --json FILE: to a file
    minidl check --junit results.xml    writes JUnit XML, which GitLab, Jenkins and GitHub show
    minidl check --gradescope FILE      writes Gradescope's results.json
    minidl progress                     shows which exercises in work/ are blank, edited, passed
    minidl class DIR --csv points.csv   grades every student's folder in DIR, writes their points

An exercise gives either all of its points in course.cfg, or no points. A tutorial gives the sum of
its exercises' points.

Source: Gradescope, "Autograder specifications", output format; the JUnit schema of Jenkins' plugin
Test: tests/course/test_report.py   Course: docs/course/kit.md
'''

import contextlib
import csv
import hashlib
import io
import json
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from minidl.course import exercise, grade, renamed
from minidl.course.comments import in_language
from minidl.course.exercise import ROOT, WORK, ExerciseError
from minidl.text import padded, tr

SEEN = "progress.json"  # in work/: the result of the last check of each exercise


def numbers(root=ROOT, work=WORK):
    """Returns the numbers of the tutorials to grade. course.cfg names these tutorials. Without
    course.cfg, all tutorials that have a file in `work` are graded."""
    named = grade.settings(root).get("course", "tutorials", fallback="").split()
    known = exercise.tutorials(root)
    return named or [n for n, files in known.items() if (work / files[0].name).exists()]


def results(wanted, root=ROOT, work=WORK, **how):
    """Returns a list with a Result for each exercise. wanted: numbers of tutorials or exercises,
    such as "07" or "07b". An exercise that was not handed in has no points."""
    found = []
    for number in wanted:
        path = work / exercise.sources(number[:2], root)[0].name
        if path.is_file():
            found += grade.results(number, root, work, **how)
            continue
        print(tr(f"{path} was not handed in"), flush=True)
        named = sorted(r for source in exercise.sources(number[:2], root)
                       for r in exercise.regions(exercise.read(source)) if r.id.startswith(number))
        found += [grade.Result(r.id, r.title, "not graded", message="not handed in",
                               of=grade.points_of(r.id, root)) for r in named]
    return found


def check(number=None, work=None, student=None, answers=None, as_json=None, junit=None,
          gradescope=None, root=ROOT):
    """`minidl check`: grades, and writes the files that were asked for. Returns 0 if every exercise
    passed, otherwise 1.

    number: a tutorial or an exercise. If None, grades all tutorials that numbers() returns.
    as_json, junit, gradescope: the name of a file, "-" for the standard output, or None for no such
    file."""
    work, answers = Path(work or WORK), answers and Path(answers)
    renamed.bring_up_to_date(work)
    wanted = [number] if number else numbers(root, work)
    if not wanted:
        raise ExerciseError(f"there is no exercise in {work.resolve()}. Make one first: "
                            "minidl exercise 01")
    if number:
        exercise._named(number, root)
        exercise.existing(work / exercise.sources(number[:2], root)[0].name, number[:2])
    aside = sys.stderr if as_json == "-" else sys.stdout  # standard output gets only the JSON
    with contextlib.redirect_stdout(aside):
        found = results(wanted, root, work, answers=answers, student=student)
        points, of = total(found)
        print(tr(f"points: {points:g} of {of:g}"), flush=True)
    for name, form in ((as_json, as_text), (junit, as_junit), (gradescope, as_gradescope)):
        if name == "-":
            print(form(found))
        elif name:
            exercise._replace(Path(name), form(found) + "\n")
    if work == WORK:
        _remember(found, root, work)
    return 0 if all(r.verdict == "passed" for r in found) else 1


def total(found):
    """Returns (points, possible points), two sums over all exercises."""
    return sum(r.points for r in found), sum(r.of for r in found)


def as_text(found):
    points, of = total(found)
    return json.dumps({"points": points, "of": of, "exercises": [r._asdict() for r in found]},
                      indent=1)


def as_junit(found):
    """Returns JUnit XML: a test case for each exercise. An exercise that was not graded is an
    error, not a failure."""
    count = {word: str(sum(r.verdict == word for r in found)) for word in ("FAILED", "not graded")}
    suite = ElementTree.Element("testsuite", name="minidl check", tests=str(len(found)),
                                failures=count["FAILED"], errors=count["not graded"])
    for r in found:
        case = ElementTree.SubElement(suite, "testcase", name=r.exercise,
                                      classname=f"tutorial {r.exercise[:2]}")
        if r.verdict != "passed":
            kind = "failure" if r.verdict == "FAILED" else "error"
            first = _plain(r.message).strip().split("\n")[0]
            ElementTree.SubElement(case, kind, message=first).text = _plain(r.message)
        ElementTree.SubElement(case, "system-out").text = _plain("\n".join(r.held))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _plain(text):
    """Returns the text without control characters, which XML cannot contain."""
    return "".join(c for c in text if c in "\t\n" or c >= " ")


def as_gradescope(found):
    """Returns the text of Gradescope's results.json. The format is described at
    https://gradescope-autograders.readthedocs.io, under "specs"."""
    points, of = total(found)
    tests = [{"name": f"{r.exercise}: {tr(r.checked)}", "number": r.exercise, "score": r.points,
              "max_score": r.of, "status": "passed" if r.verdict == "passed" else "failed",
              "output": "\n".join([*(f"ok    {tr(line)}" for line in r.held),
                                   tr(r.message)]).strip(),
              "output_format": "text", "visibility": "visible"} for r in found]
    return json.dumps({"score": points, "output": f"{points:g} of {of:g} points", "tests": tests},
                      indent=1)


# -- progress


def _digest(code):
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def _regions_of(path):
    """Returns {exercise: a hash of its code} for a student's file. Returns {} if the file cannot be
    read, or if the marks of its exercises are damaged."""
    try:
        text = exercise.read(path)
        return {r.id: _digest(exercise.body(text, r))
                for r in exercise.regions(text, path.name)}
    except (OSError, ExerciseError):
        return {}


def _remember(found, root, work):
    """Writes the verdict on each exercise, and a hash of its code, into work/progress.json."""
    seen = _seen(work)
    for r in found:
        for source in exercise.sources(r.exercise[:2], root):
            if code := _regions_of(work / source.name).get(r.exercise):
                seen[r.exercise] = {"code": code, "verdict": r.verdict, "points": r.points}
    if work.is_dir():
        exercise._replace(work / SEEN, json.dumps(seen, indent=1, sort_keys=True) + "\n")


def _seen(work):
    """Returns {exercise: the result of its last check}, from progress.json. Returns {} if this file
    is missing or damaged."""
    try:
        found = json.loads(exercise.read(work / SEEN))
        return {name: about for name, about in found.items()
                if about.keys() >= {"code", "verdict", "points"}}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}


def progress(root=ROOT, work=WORK):
    """`minidl progress`: prints a line for each exercise of the course, and the points so far."""
    renamed.bring_up_to_date(work)
    seen, points, of = _seen(work), 0.0, 0.0
    named = grade.settings(root).get("course", "tutorials", fallback="").split()
    for number in named or exercise.tutorials(root):
        for source in exercise.sources(number, root):
            theirs = _regions_of(work / source.name)
            blank = exercise.blank(exercise.read(source))
            other = in_language(blank)
            for r in exercise.regions(blank):
                nothing = _digest(exercise.body(blank, r))
                also = next(_digest(exercise.body(other, o)) for o in exercise.regions(other)
                            if o.id == r.id)
                last = seen.get(r.id, {})
                worth = grade.points_of(r.id, root)
                states = {None: "not begun", nothing: "blank", also: "blank"}
                state = states.get(theirs.get(r.id), "not checked")
                if state == "not checked" and last.get("code") == theirs[r.id]:
                    state = last["verdict"]
                elif state == "not checked" and last:
                    state = f"edited since the last check ({last['verdict']})"
                got = worth if state == "passed" else 0.0
                title = padded(tr(r.title), 54)
                print(f"{r.id}  {title} {got:4g} {tr('of')} {worth:<4g} {tr(state)}")
                points, of = points + got, of + worth
    print(tr(f"{points:g} of {of:g} points, by your own checks"))
    return 0


# -- a class


def grade_class(folder, table="points.csv", number=None, answers=None, personal=False, root=ROOT):
    """`minidl class DIR`: grades each folder in DIR. Writes a line for each folder into the CSV
    file `table`.

    A folder is a student's repository, or it has the files that are in a student's work/. number:
    the tutorial or exercise to grade. If None, course.cfg names the tutorials. personal: if True,
    each student has different inputs, drawn from the folder's name. Returns 0. Raises ExerciseError
    if there is no such folder or exercise."""
    folders = sorted(f for f in Path(folder).glob("*") if f.is_dir())
    if not folders:
        raise ExerciseError(f"wanted a folder for each student in {folder}; there is no folder in "
                            "it")
    wanted = [number] if number else numbers(root, Path(folder))
    if not wanted:
        raise ExerciseError("want the number of a tutorial, because no course.cfg names the "
                            f"exercises. For example: minidl class {folder} 07")
    for one in wanted:
        exercise._named(one, root)  # raises ExerciseError if there is no such exercise
    lines = {}
    for one in folders:
        print(f"\n=== {one.name}", flush=True)
        lines[one.name] = _graded(one, wanted, answers, personal, root)
        _write_table(Path(table), lines)  # after each student, in case grading stops later
    print(f"\nwrote {table}: {len(lines)} students")
    return 0


def _graded(folder, wanted, answers, personal, root):
    """Returns a student's line of the table. The line is {exercise: its points, "total": the sum,
    "of": the possible sum, "not graded": the names of the exercises that gave no answer or were not
    handed in}. A folder that cannot be graded gets 0 points."""
    work = folder / "work" if (folder / "work").is_dir() else folder
    how = {"answers": answers and Path(answers), "student": folder.name if personal else None}
    try:
        _no_links(folder, work)
        renamed.bring_up_to_date(work)
        found = results(wanted, root, work, **how)
    except (ExerciseError, OSError, ValueError, RuntimeError) as error:
        # for example, opening a link to itself raises an OSError
        print(tr(f"not graded: {error}"), flush=True)
        with tempfile.TemporaryDirectory() as empty, contextlib.redirect_stdout(io.StringIO()):
            found = results(wanted, root, Path(empty), **how)
    points, of = total(found)
    line = {r.exercise: f"{r.points:g}" for r in found}
    missing = " ".join(r.exercise for r in found if r.verdict == "not graded")
    return line | {"total": f"{points:g}", "of": f"{of:g}", "not graded": missing}


def _no_links(folder, work):
    """Raises ExerciseError if a file is a link to a place outside the student's folder. Such a link
    could point to another student's answer."""
    for path in [work, *work.glob("*.py")]:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ExerciseError(f"{path} is a link to {path.resolve()}; wanted a file inside of "
                                f"{folder}")


def _write_table(table, lines):
    out = csv.DictWriter(text := io.StringIO(), ["student", *next(iter(lines.values()))])
    out.writeheader()
    out.writerows({"student": name} | line for name, line in lines.items())
    exercise._replace(table, text.getvalue())
