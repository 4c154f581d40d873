"""Tutorials that have another number now: their old names work, and each says the new one.

The repository is that of test_exercise.py, whose 07_numbers was 05_numbers once."""

import runpy
import sys

import pytest

from minidl.cli import launcher
from minidl.cli import main as cli
from minidl.course import exercise, grade, notebook, old_names, report
from minidl.course.old_names import OLD_NAMES
from tests.course import test_exercise

SENTENCE = "05_numbers is 07_numbers now\n"
OLD = test_exercise.TUTORIAL.replace("07", "05")
SCRIPTS = sorted((exercise.ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
place = test_exercise.place  # the fixture


@pytest.fixture(autouse=True)
def renamed(monkeypatch):
    monkeypatch.setattr(old_names, "OLD_NAMES", {"05_numbers": "07_numbers"})
    old_names.say.cache_clear()


def _work(place, text=OLD, name="05_numbers.py"):
    path = place.parent / "work" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_new_names_are_tutorials_and_the_old_ones_are_none():
    names = {path.stem for path in SCRIPTS}
    assert {*OLD_NAMES.values()} <= names and not names & {*OLD_NAMES}


def test_a_name_is_its_tutorials_number_and_an_old_one_says_so_once(place, capsys):
    assert old_names.number("07_numbers", place) == old_names.number("07_numbers.py", place) == "07"
    assert capsys.readouterr().err == ""
    assert old_names.number("05_numbers", place) == old_names.number("05_numbers.py", place) == "07"
    assert capsys.readouterr().err == SENTENCE
    for text in ("07_letters", "05", "5a", "numbers", "tutorials/07_numbers"):
        assert old_names.number(text, place) is None


@pytest.mark.parametrize("command, module, name", [
    ("check", report, "check"), ("exercise", exercise, "write"), ("solution", exercise, "solution"),
    ("notebook", notebook, "write")])
def test_commands_take_a_name(command, module, name, monkeypatch, capsys):
    monkeypatch.setattr(old_names, "OLD_NAMES", {"66_old": SCRIPTS[6].stem})
    monkeypatch.setattr(module, name, lambda *given, **_: print(given[0]) or 0)
    for words in (SCRIPTS[6].stem, "66_old"):
        assert cli.main([command, words]) == 0
        assert capsys.readouterr().out == SCRIPTS[6].name[:2] + "\n"
    if command != "notebook":
        with pytest.raises(SystemExit):
            cli.main([command, "66_other"])


@pytest.mark.parametrize("command, module", [("run -n 2", launcher), ("notebook", notebook)])
def test_a_path_with_an_old_name_is_the_new_file(command, module, place, monkeypatch,
                                                 capsys):
    monkeypatch.chdir(place)
    monkeypatch.setattr(module, "run" if module is launcher else "write",
                        lambda *given: print(given[0]) or 0)
    for script in ("tutorials/07_numbers.py", "tutorials/05_letters.py"):
        assert cli.main([*command.split(), script]) == 0
        assert capsys.readouterr() == (f"{script}\n", "")
    assert cli.main([*command.split(), "tutorials/05_numbers.py"]) == 0
    assert capsys.readouterr() == ("tutorials/07_numbers.py\n", SENTENCE)
    (place / "tutorials" / "05_numbers.py").touch()  # somebody's own
    assert cli.main([*command.split(), "tutorials/05_numbers.py"]) == 0
    assert capsys.readouterr().out == "tutorials/05_numbers.py\n"


def test_a_students_file_from_before_is_graded_as_the_new_exercise(place, capsys):
    _work(place)
    assert grade.check("07", root=place) == 0
    out, err = capsys.readouterr()
    assert "checking work/05_numbers.py" in out and "07a passed, 07b passed" in out
    assert err == SENTENCE
    _work(place, OLD.replace("3 * x", "4 * x"))
    assert report.check(root=place) == 1, "found without a number, too"
    assert "07a passed, 07b FAILED" in capsys.readouterr().out


def test_progress_knows_what_was_said_of_it(place, capsys):
    _work(place, exercise.fill(exercise.blank(OLD), {"05a": "return x + x"}))

    def states():
        report.progress(place)
        return [line.split("of 10 ")[1].strip() for line in capsys.readouterr().out.splitlines()
                if line.startswith("07")]

    assert states() == ["not checked", "blank"]
    report.check("07", root=place)
    capsys.readouterr()
    assert states() == ["passed", "blank"]
    assert '"05a"' in (place.parent / "work" / report.SEEN).read_text()
    _work(place)
    assert states() == [f"edited since the last check ({word})" for word in ("passed", "FAILED")]


def test_the_old_file_is_compared_and_not_overwritten(place, capsys):
    path = _work(place, OLD.replace("3 * x", "4 * x").replace('"""05', '"""07'))
    assert exercise.solution("07", root=place) == 0
    changed = [line for line in capsys.readouterr().out.splitlines() if line[:1] in "+-"]
    assert changed[2:] == ["-    return 4 * x", "+    return 3 * x"]
    exercise.solution("07a", root=place)
    assert capsys.readouterr().out == "No difference.\n"
    with pytest.raises(exercise.ExerciseError, match="work/05_numbers.py has been edited"):
        exercise.write("07", root=place)
    before = path.read_text()
    exercise.write("07a", force=True, root=place)
    text = (path.parent / "07_numbers.py").read_text()
    assert path.read_text() == before and "return 4 * x" in text and "x + x" not in text
    assert [r.id for r in exercise.regions(text)] == ["07a", "07b"]
    capsys.readouterr()
    grade.check("07", root=place)
    assert "checking work/07_numbers.py" in capsys.readouterr().out, "both: the new one"


def test_a_number_is_always_the_new_one(place, monkeypatch, capsys):
    monkeypatch.setattr(old_names, "OLD_NAMES", {"07_letters": "09_letters"})
    _work(place, name="07_letters.py")
    with pytest.raises(exercise.ExerciseError, match="work/07_numbers.py does not exist"):
        grade.check("07", root=place)
    assert capsys.readouterr().err == "07_letters is 09_letters now\n"


def test_an_old_script_has_the_head_of_the_new_one_in_chinese(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(old_names, "OLD_NAMES", {"66_old": SCRIPTS[6].stem})
    monkeypatch.setenv("MINIDL_LANG", "zh")
    path = tmp_path / "66_old.py"
    path.write_text(exercise.read(SCRIPTS[6]))
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(path), run_name="__main__")
    assert "前置知识" in capsys.readouterr().out
