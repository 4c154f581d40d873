"""Every exercise: its tutorial passes, its blank fails, each wrong answer fails and says why."""

import re

import numpy as np
import pytest

from minidl.course import exercise, grade
from minidl.course.student import HINTS, Failed, Wrong, load, seed_of
from minidl.own_files import write_whole
from tests.conftest import some
from tests.course.planted import Here, mistaken


@pytest.fixture
def folder(request):
    """The student's, the same in every run: a kernel's path is in its lines, and so in the key
    under which what was compiled of it is kept. Another run may have the same test just now: it
    writes the same texts, each whole."""
    path = exercise.ROOT / "build" / "students" / re.sub(r"\W+", "_", request.node.name)
    path.mkdir(parents=True, exist_ok=True)
    return path


SOURCES = exercise.tutorials()  # {number: its files}, read once


def _cases():
    return [
        (number, region.id)
        for number, sources in SOURCES.items()
        for source in sources
        for region in exercise.regions(source.read_text())
    ]


def _wrong():
    return [
        pytest.param(number, name, mistake, id=f"{name}: {mistake}")
        for number, name in _cases()
        for mistake in grade.grader(number).WRONG.get(name, ())
    ]


def _student(number, folder, change):
    """The tutorial's text, changed, as the student that a grader asks; its kernels beside it."""
    paths = [folder / source.name for source in SOURCES[number]]
    for source, path in zip(SOURCES[number], paths, strict=True):
        write_whole(path, change(source.read_text()))
    return Here(grade.grader(number), load(paths[0]), paths[0]), paths[0]


def _grade(number, name, student):
    return list(getattr(grade.grader(number), "grade_" + name)(student))


@pytest.mark.parametrize("number, name", _cases())
def test_the_tutorial_passes_its_own_grader(number, name, folder):
    student, _ = _student(number, folder, lambda text: text)
    assert len(_grade(number, name, student)) >= 3, (
        "a grader names at least three things that it checked"
    )


# 03: no sizes of its own
@pytest.mark.parametrize("number", some(sorted(set(SOURCES) - {"03"}), of=3))
def test_the_tutorial_passes_with_a_students_own_inputs(number, folder):
    student, path = _student(number, folder, lambda text: text)
    plain, own = grade.grader(number), grade.grader(number, seed=seed_of("Ada Lovelace"))
    student = Here(own, student.parts[1], path)
    for name in (name for n, name in _cases() if n == number):
        assert list(getattr(own, "grade_" + name)(student))
    if hasattr(plain, "personal"):
        assert [k for k in plain.personal(np.random.default_rng(1))
                if len(getattr(own, k)) == len(getattr(plain, k)) + 1]


@pytest.mark.parametrize("number, name", _cases())
def test_the_blank_fails_and_says_which_exercise_is_missing(number, name, folder):
    student, path = _student(number, folder, exercise.blank)
    with pytest.raises(Failed) as caught:
        _grade(number, name, student)
    explained = grade.explain(caught.value, path)
    assert f"exercise {name} (" in explained and "is not written yet" in explained
    file = next(s.name for s in SOURCES[number] if f">>> exercise {name}" in s.read_text())
    assert file in explained, "the file and line to go to"


@pytest.mark.parametrize("number, name, mistake", some(_wrong(), of=3))
def test_a_wrong_answer_fails_with_a_message_that_helps(number, name, mistake, folder):
    code, words = grade.grader(number).WRONG[name][mistake]
    student, path = _student(
        number, folder, lambda text: mistaken(text, name, code)
    )
    with pytest.raises((Wrong, Failed)) as caught:
        _grade(number, name, student)
    said = grade.explain(caught.value, path)
    assert words in said, f"the grader of {name} says to {mistake!r}, without {words!r}: {said}"


def _in_python():
    return [(number, name) for number, name in _cases()
            if f"# >>> exercise {name}" in SOURCES[number][0].read_text()]


@pytest.mark.parametrize("number, name", some(_in_python(), of=4))
def test_a_forgotten_return_is_refused_without_a_riddle(number, name, folder):
    student, path = _student(number, folder, lambda text: mistaken(text, name, "return None"))
    with pytest.raises((Wrong, Failed, TypeError)) as caught:  # the command catches all errors
        _grade(number, name, student)
    said = grade.explain(caught.value, path)
    assert "NoneType" not in said or HINTS["NoneType"] in said, said


def test_every_exercise_has_three_wrong_answers():
    for number, name in _cases():
        wrong = grade.grader(number).WRONG.get(name, {})
        assert len(wrong) >= 3, (f"tutorials/graders: WRONG of {number} wants three wrong answers "
                                 f"to {name}, each with words of its message; has {len(wrong)}")
