"""What came of the exercises, as JSON, JUnit XML, Gradescope's results.json, a table of a class.

The whole way of a course: tests/course/test_handout.py"""

import csv
import json
import os
from functools import partial
from xml.etree import ElementTree

import pytest

from minidl.cli import main as cli
from minidl.course import exercise, grade, report
from minidl.course.student import Apart, load, load_grader, seed_of
from tests.conftest import whole_form
from tests.course.planted import Here, mistaken
from tests.course.test_exercise import GRADER, TUTORIAL

CONFIG = "[course]\ntutorials = 07\n[points]\n07a = 4\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A repository with one tutorial of two exercises, 4 and 10 points; a folder for work/."""
    root = tmp_path / "repository"
    (root / "tutorials" / "graders").mkdir(parents=True)
    (root / "tutorials" / "07_numbers.py").write_text(TUTORIAL)
    (root / "tutorials" / "graders" / "07_numbers.py").write_text(GRADER)
    (root / "course.cfg").write_text(CONFIG)
    monkeypatch.setattr(grade, "Apart", Near)
    monkeypatch.chdir(tmp_path)
    return root


class Near(Here):
    """The student's file in this process: seconds less."""

    def __init__(self, grader, path, deadline, seed):
        super().__init__(load_grader(grader, seed), load(path), path)

    def loaded(self):
        pass

    close = loaded


HALF = TUTORIAL.replace("3 * x", "3 + x")


def _submit(root, text, folder="work"):
    path = root.parent / folder / "07_numbers.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_points_are_those_of_the_course_all_or_none(place, capsys):
    _submit(place, HALF)
    assert report.check(root=place) == 1
    assert "points: 4 of 14" in capsys.readouterr().out
    _submit(place, TUTORIAL)
    assert report.check(root=place) == 0
    assert "points: 14 of 14" in capsys.readouterr().out
    assert report.check("07b", root=place) == 0
    assert "points: 10 of 10" in capsys.readouterr().out, "10 where course.cfg says nothing"


def test_json_alone_is_on_the_standard_output(place, capsys):
    _submit(place, HALF)
    report.check("07", as_json="-", root=place)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["points"], found["of"]) == (4, 14) and "exercise 07a" in err
    first, second = found["exercises"]
    assert first["exercise"] == "07a" and first["held"] == ["x = 1", "x = 2", "x = 5"]
    assert second["verdict"] == "FAILED" and second["points"] == 0 and second["of"] == 10


def test_junit_has_a_case_for_each_exercise_and_says_why(place):
    _submit(place, HALF.replace("3 + x", '1 / 0  # "<&\\x07'))
    report.check(junit="results.xml", root=place)
    suite = ElementTree.parse("results.xml").getroot()
    assert suite.attrib == {"name": "minidl check", "tests": "2", "failures": "1", "errors": "0"}
    first, second = suite.findall("testcase")
    assert first.find("failure") is None and "x = 5" in first.find("system-out").text
    assert "ZeroDivisionError" in second.find("failure").text
    report.exercise._replace(place.parent / "bell.xml", report.as_junit(
        [grade.Result("07a", "", "not graded", message="a bell \x07 and <b>")]))
    error = ElementTree.parse("bell.xml").find("testcase/error")
    assert error.text == "a bell  and <b>", "not graded: an error, and no character XML forbids"


def test_gradescope_has_its_fields(place):
    _submit(place, HALF)
    report.check(gradescope="results.json", root=place)
    found = json.loads((place.parent / "results.json").read_text())
    assert found["score"] == 4
    assert [(t["score"], t["max_score"], t["status"]) for t in found["tests"]] == [
        (4, 4, "passed"), (0, 10, "failed")]
    assert {t["visibility"] for t in found["tests"]} == {"visible"}
    assert "ok    x = 5" in found["tests"][0]["output"]


@pytest.mark.parametrize("grade_it", [report.check, partial(report.grade_class, ".")])
def test_of_an_exercise_that_is_not_there_the_course_says_which_are(grade_it, place):
    """Red before: it was the student's file that was missing."""
    with pytest.raises(exercise.ExerciseError, match="no exercise 07z; tutorial 07 has the exerci"):
        grade_it(number="07z", root=place)


def test_what_was_not_handed_in_has_no_points_and_is_no_error(place, capsys):
    (place.parent / "empty").mkdir()
    assert report.check(work="empty", gradescope="results.json", root=place) == 1
    found = json.loads((place.parent / "results.json").read_text())
    assert found["score"] == 0 and [t["max_score"] for t in found["tests"]] == [4, 10]
    assert found["tests"][0]["output"] == "not handed in"
    with pytest.raises(exercise.ExerciseError, match="Make this file first: minidl exercise 07"):
        report.check("07", work="empty", root=place)
    (place / "course.cfg").unlink()
    with pytest.raises(exercise.ExerciseError, match="no exercise in"):
        report.check(work="empty", root=place)


def test_progress_knows_blank_passed_failed_and_edited(place, capsys):
    def states():
        capsys.readouterr()
        report.progress(place)
        *lines, total = capsys.readouterr().out.splitlines()
        return [line.split(maxsplit=5)[-1] for line in lines], total

    assert states() == (["not begun", "not begun"], "0 of 14 points, by your own checks")
    exercise.write("07", root=place)
    assert states()[0] == ["blank", "blank"]
    _submit(place, HALF)
    assert states()[0] == ["not checked", "not checked"]
    report.check(root=place)
    assert states() == (["passed", "FAILED"], "4 of 14 points, by your own checks")
    _submit(place, HALF.replace("x + x", "2 * x"))
    assert states() == (["edited since the last check (passed)", "FAILED"],
                        "0 of 14 points, by your own checks")
    for text in ("", "[]", '{"07a": 3}', '{"07a": {}}', "[" * 100000, "\\xff"):
        (place.parent / "work" / report.SEEN).write_text(text)
        assert states()[0] == ["not checked", "not checked"], "a damaged file is as none"


def test_a_class_is_a_line_for_each_folder(place, capsys):
    _submit(place, TUTORIAL, "class/ada/work")
    _submit(place, HALF, "class/bob")
    (place.parent / "class" / "chen").mkdir()
    report.grade_class("class", "points.csv", root=place)
    lines = list(csv.reader((place.parent / "points.csv").read_text().splitlines()))
    assert lines == [["student", "07a", "07b", "total", "of", "not graded"],
                     ["ada", "4", "10", "14", "14", ""],
                     ["bob", "4", "0", "4", "14", ""],
                     ["chen", "0", "0", "0", "14", "07a 07b"]]
    with pytest.raises(exercise.ExerciseError, match="cannot write nowhere/at/points.csv"):
        report.grade_class("class", "nowhere/at/points.csv", root=place)
    with pytest.raises(exercise.ExerciseError, match="a folder for each student in"):
        report.grade_class("class/chen", root=place)
    (place / "course.cfg").unlink()
    with pytest.raises(exercise.ExerciseError, match="minidl class class 07"):
        report.grade_class("class", root=place)


ANSWERS = exercise.ROOT / "tests" / "course" / "answers"


@whole_form
@pytest.mark.parametrize("hostile", ["tampering/os_exit", "tampering/builtins_agree",
                                     "07a/wrong_by_the_library"])
def test_a_class_of_five_real_submissions(hostile, tmp_path, monkeypatch, capsys):
    """Right, half, wrong, hostile, and right again by a student whose name is Chinese."""
    monkeypatch.chdir(tmp_path)
    text = exercise.read(exercise.ROOT / "tutorials" / "07_ring.py")
    later = "raise NotImplementedError('later')"

    def answered(name):
        return mistaken(text, "07a", (ANSWERS / f"{name}.py").read_text())

    submissions = {
        "ada": text,
        "bob": mistaken(mistaken(text, "07b", later), "07c", later),
        "chen": answered("07a/wrong_chunk_off_by_one"),
        "eve": answered(hostile),
        "王小明": answered("07a/right_pairs_first"),
    }
    for name, submission in submissions.items():
        work = tmp_path / "class" / name / "work"
        work.mkdir(parents=True)
        (work / "07_ring.py").write_text(submission)
    report.grade_class("class", number="07")
    with open("points.csv", encoding="utf-8-sig") as file:
        points = {line["student"]: line for line in csv.DictReader(file)}
    assert list(points) == list(submissions)
    assert [points[name]["07a"] for name in submissions] == ["10", "10", "0", "0", "10"]
    assert [points[name]["total"] for name in ("ada", "bob", "chen", "王小明")] == [
        "30", "10", "20", "30"]
    assert {line["of"] for line in points.values()} == {"30"}


def test_a_folder_that_cannot_be_graded_has_no_points_and_the_others_have_theirs(place, capsys):
    for name in "abcdefgh":
        _submit(place, TUTORIAL, f"class/{name}/work")
    work = {name: place.parent / "class" / name / "work" for name in "bcdefg"}
    (work["b"] / "06_ring.py").write_bytes(b"\xff\xfe no utf-8: renamed, and not read")
    (work["c"] / "07_numbers.py").unlink()
    os.mkfifo(work["c"] / "07_numbers.py")  # to read it is to wait for ever
    (work["d"] / "07_numbers.py").unlink()
    (work["d"] / "07_numbers.py").mkdir()
    (work["e"] / "07_numbers.py").unlink()
    (work["e"] / "07_numbers.py").symlink_to("/dev/zero")
    (work["f"] / "07_numbers.py").unlink()
    (work["f"] / "07_numbers.py").symlink_to(place.parent / "class/a/work/07_numbers.py")
    (work["g"] / "07_numbers.py").unlink()
    (work["g"] / "07_numbers.py").symlink_to("07_numbers.py")
    report.grade_class("class", root=place)
    lines = list(csv.DictReader((place.parent / "points.csv").read_text().splitlines()))
    assert {line["student"]: line["total"] for line in lines} == dict.fromkeys(
        "cdefg", "0") | dict.fromkeys("abh", "14")
    assert {line["of"] for line in lines} == {"14"}


def test_what_is_graded_is_in_the_table_when_the_grader_ends(place, monkeypatch):
    """A power failure, a full disk: whoever was before it has points."""
    for name in "abc":
        _submit(place, TUTORIAL, f"class/{name}")
    real = report.results
    monkeypatch.setattr(report, "results", lambda wanted, root, work, **how: (
        real(wanted, root, work, **how) if work.name != "c" else 1 / 0))
    with pytest.raises(ZeroDivisionError):
        report.grade_class("class", root=place)
    lines = (place.parent / "points.csv").read_text().splitlines()
    assert lines[1:] == ["a,4,10,14,14,", "b,4,10,14,14,"]


def test_a_students_own_inputs_are_the_same_in_both_processes(place, monkeypatch, capsys):
    monkeypatch.setattr(grade, "Apart", Apart)
    monkeypatch.setenv("PYTHONPATH", str(exercise.ROOT))
    file = place / "tutorials" / "graders" / "07_numbers.py"
    file.write_text('''
from minidl.course.grade import Wrong

SEED = 0
SIZES = [1]

def personal(draw):
    return {"SIZES": [*SIZES, int(draw.integers(2, 1000))]}

def given(module):
    return SEED, SIZES

def grade_07a(student):
    """both have the same."""
    if student.run(given) != (SEED, SIZES):
        raise Wrong("others")
    yield f"{SEED} {SIZES}"
''')
    _submit(place, TUTORIAL)
    said = []
    for name in ("Ada", "Bob"):
        assert grade.check("07", root=place, student=name) == 0
        said.append(capsys.readouterr().out.split("ok    ")[1].splitlines()[0])
    assert said[0] != said[1]
    assert seed_of("Ada") == seed_of(" a DA") != seed_of("Bob") and seed_of(None) == 0


def test_the_commands_reach_their_work(place, monkeypatch, capsys):
    monkeypatch.setattr(report, "check", lambda *given: print(given) or 5)
    assert cli.main("check 6a --json --student Ada --answers secret".split()) == 5
    assert capsys.readouterr().out == "('06a', None, 'Ada', 'secret', '-', None, None)\n"
