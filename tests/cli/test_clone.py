"""With two clones, a command works with the one that its file, or its folder, lies in."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minidl.cli import clone

ROOT = Path(__file__).parents[2]


@pytest.fixture
def other(tmp_path):
    """Another clone: its files are links, except for the two that Python finds packages by."""
    made = tmp_path / "other clone"
    (made / "tutorials").mkdir(parents=True)
    (made / "kernels").symlink_to(ROOT / "kernels")
    copy = made / "minidl"
    copy.mkdir()
    for entry in (ROOT / "minidl").iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            linked = copy / entry.name
            linked.mkdir()
            for below in entry.iterdir():
                (linked / below.name).symlink_to(below)
        elif entry.suffix == ".py":
            (copy / entry.name).write_bytes(entry.read_bytes())
    (made / "tutorials" / "mine.py").write_text("import minidl; print(minidl.__file__)\n")
    return made


def command(*arguments, cwd):
    """`minidl ...` of the installed clone, as typed in a folder."""
    program = "from minidl.cli.main import main; raise SystemExit(main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop(clone.STARTED, None)
    return subprocess.run([sys.executable, "-P", "-c", program, *map(str, arguments)], cwd=cwd,
                          env=environment, capture_output=True, text=True, timeout=60)


def test_the_clone_around_a_file_or_a_folder(other, tmp_path):
    assert clone.around(other / "tutorials" / "mine.py") == other
    assert clone.around(other / "kernels") == ROOT  # where the link leads
    assert clone.around(other / "no" / "such" / "file.py") == other
    assert clone.around(tmp_path) is None


@pytest.mark.parametrize("words", [["profile"], ["run", "-n", "1"]])
def test_a_script_runs_with_the_clone_that_it_lies_in(other, tmp_path, words):
    script = other / "tutorials" / "mine.py"
    result = command(*words, script, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"{other / 'minidl' / '__init__.py'}\n" in result.stdout
    assert f"using the package in {other}, not the installed package in {ROOT}" in result.stderr


def test_without_a_file_it_is_the_folders_clone(other, tmp_path):
    text = f"using the package in {other}"
    assert text in command("--version", cwd=other / "tutorials").stderr
    assert "using the package" not in command("--version", cwd=tmp_path).stderr
    assert "using the package" not in command("--version", cwd=ROOT).stderr


def test_a_script_of_neither_clone_runs_with_that_of_the_folder(other, tmp_path):
    (tmp_path / "alone.py").write_text("import minidl; print(minidl.__file__)\n")
    result = command("profile", tmp_path / "alone.py", cwd=other)
    assert str(other) in result.stdout, result.stderr
    result = command("profile", tmp_path / "alone.py", cwd=tmp_path)
    assert str(ROOT) in result.stdout and "clone" not in result.stderr


def test_a_clone_that_python_does_not_import_is_named(other, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(clone.STARTED, str(other))
    monkeypatch.chdir(other)
    clone.follow(["--version"])
    assert f"wanted the package in {other}, but Python imports the one in" in (
        capsys.readouterr().err)
