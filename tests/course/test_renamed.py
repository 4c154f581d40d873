"""A student's files from before names changed: renamed, rewritten, said in a sentence each.

The repository is that of test_exercise.py, whose 07_numbers was 05_numbers once."""

import importlib

import pytest

from minidl.cli import main as cli
from minidl.course import exercise, grade, notebook, renamed, report
from minidl.course.renamed import MODULES, TUTORIALS
from tests.course import test_exercise

OLD = test_exercise.TUTORIAL.replace("07", "05")
SCRIPTS = sorted((exercise.ROOT / "tutorials").glob("[0-9][0-9]_*.py"))
place = test_exercise.place  # the fixture


@pytest.fixture(autouse=True)
def one_renamed(monkeypatch):
    monkeypatch.setattr(renamed, "TUTORIALS", {"05_numbers": "07_numbers"})


@pytest.fixture
def work(place):
    folder = place.parent / "work"
    folder.mkdir(exist_ok=True)
    return folder


def test_the_new_names_exist_and_the_old_ones_do_not():
    names = {path.stem for path in SCRIPTS}
    assert {*TUTORIALS.values()} <= names and not names & {*TUTORIALS}
    for old, new in MODULES.items():
        importlib.import_module(new)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(old)


@pytest.mark.parametrize("command", ["check", "solution", "progress"])
def test_a_file_with_an_old_number_is_renamed_before_a_command_reads_it(
        command, place, work, capsys):
    (work / "05_numbers.py").write_text(OLD)
    if command == "check":
        assert report.check("07", root=place) == 0
    elif command == "solution":
        assert exercise.solution("07", root=place) == 0
    else:
        assert report.progress(place) == 0
    out = capsys.readouterr().out
    assert "renamed work/05_numbers.py to work/07_numbers.py: 05_numbers is called 07_numb" in out
    assert not (work / "05_numbers.py").exists()
    text = (work / "07_numbers.py").read_text()
    assert [r.id for r in exercise.regions(text)] == ["07a", "07b"]
    if command == "check":
        assert "07a passed, 07b passed" in out


def test_a_file_that_is_there_already_stays_and_both_are_named(place, work, capsys):
    (work / "05_numbers.py").write_text(OLD.replace("3 * x", "4 * x"))
    (work / "07_numbers.py").write_text(test_exercise.TUTORIAL)
    assert report.check("07", root=place) == 0
    assert "work/05_numbers.py is not changed" in capsys.readouterr().out
    assert "4 * x" in (work / "05_numbers.py").read_text()


def test_verdicts_of_the_old_number_are_forgotten(place, work):
    (work / "05_numbers.py").write_text(OLD)
    (work / report.SEEN).write_text('{"05a": {"code": "x", "verdict": "passed", "points": 10}}')
    report.check("07", root=place)
    assert set(report._seen(work)) == {"07a", "07b"}


@pytest.mark.parametrize("before, after", [
    ("from minidl.tutorial import Table, say", "from minidl.course.tutorial import Table, say"),
    ("from minidl import amp, nn", "from minidl import nn\nfrom minidl.precision import amp"),
    ("    from minidl.parallel import param_server",
     "    from minidl.parallel.server import server as param_server"),
    ("from minidl.comm.ledger import Ledger", "from minidl.comm.observe.ledger import Ledger"),
])
def test_old_names_of_modules_are_rewritten(before, after, tmp_path, capsys):
    path = tmp_path / "07_ring.py"
    path.write_text(f"import numpy\n{before}\nx = 'minidl.amp'\n")
    renamed.bring_up_to_date(tmp_path)
    assert path.read_text() == f"import numpy\n{after}\nx = 'minidl.amp'\n"
    said = capsys.readouterr().out
    assert said.startswith(f"updated the imports of {path}: minidl.") and said.count("\n") == 1
    renamed.bring_up_to_date(tmp_path)
    assert capsys.readouterr().out == ""


def test_a_notebook_of_an_old_script_has_the_new_names(place, work, monkeypatch, capsys):
    monkeypatch.chdir(place.parent)
    (work / "mine.py").write_text('"""Mine."""\n\nfrom minidl.tutorial import launch\n\n\n'
                                  "def main(t, args):\n    pass\n\n\nif __name__ == '__main__':\n"
                                  "    launch(main)\n")
    assert notebook.write("work/mine.py", root=place, work=work) == 0
    assert "minidl.course.tutorial import launch" in (work / "mine.ipynb").read_text()
    assert "minidl.tutorial is called minidl.course.tutorial now" in capsys.readouterr().out


@pytest.mark.parametrize("command, module, name", [
    ("check", report, "check"), ("exercise", exercise, "write"), ("solution", exercise, "solution"),
    ("notebook", notebook, "write")])
def test_commands_take_the_name_of_a_tutorial(command, module, name, monkeypatch, capsys):
    monkeypatch.setattr(module, name, lambda *given, **_: print(given[0]) or 0)
    assert cli.main([command, SCRIPTS[6].stem]) == 0
    assert capsys.readouterr().out == SCRIPTS[6].name[:2] + "\n"


def test_an_old_name_that_is_typed_leads_to_the_new_one(capsys):
    with pytest.raises(SystemExit):
        cli.main(["check", "06_ring"])
    assert "did you mean 07_ring?" in capsys.readouterr().err
    assert cli.main(["run", "-n", "2", "tutorials/06_ring.py"]) != 0
    assert "Did you mean tutorials/07_ring.py?" in capsys.readouterr().err


def test_a_number_is_todays_and_never_an_older_one(place, work):
    (work / "07_letters.py").write_text(OLD)
    with pytest.raises(exercise.ExerciseError, match="work/07_numbers.py does not exist"):
        grade.check("07", root=place)
