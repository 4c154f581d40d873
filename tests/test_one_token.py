"""Tests that tests/one_token.py makes the changes of its table, and leaves out error messages."""


import contextlib
import json
import shutil

import pytest

from tests import mutations, one_token
from tests.conftest import whole_form
from tests.one_token import changed_line, changes, own_tests
from tests.reached import record

SOURCE = '''"""A module. Test: tests/test_a.py"""
from math import cos as min


@decorated(1)
def f(x, limit=7):
    """1 < 2"""
    if x < 0 and not x == limit:
        raise ValueError(f"{x + 1}" + str(1))
    y = -x + min(x, 1)
    y += 2
    return y[-1] is not True
'''


def test_every_change_is_one_token_of_the_table():
    made = {changed_line(SOURCE, change).strip() for change in changes("a.py", SOURCE)}
    assert made == {
        "def f(x, limit=8):",
        "if x <= 0 and not x == limit:", "if x < 1 and not x == limit:",
        "if x < 0 or not x == limit:", "if x < 0 and  x == limit:",
        "if x < 0 and not x != limit:",
        "y = -x - min(x, 1)", "y = -x + max(x, 1)", "y = -x + min(x, 0)",
        "y -= 2", "y += 3",
        "return y[-0] is not True", "return y[-1] is  True", "return y[-1] is not False"}


def test_a_seed_draws_the_same_changes_and_another_one_others():
    files = ["minidl/comm/ring.py", "minidl/saved.py"]
    some, n = one_token.drawn(10, 1, files)
    assert len(set(some)) == 10 < n
    assert one_token.drawn(10, 1, files)[0] == some != one_token.drawn(10, 2, files)[0]


def test_the_tests_of_a_file_are_its_twin_and_those_that_it_names(tmp_path, monkeypatch):
    monkeypatch.setattr(one_token, "ROOT", tmp_path)
    (tmp_path / "minidl/comm").mkdir(parents=True)
    (tmp_path / "tests/comm").mkdir(parents=True)
    (tmp_path / "tests/test_far.py").touch()
    for name in ("test_ring.py", "test_near.py", "test_other.py"):
        (tmp_path / "tests/comm" / name).touch()
    text = '"""A ring.\n\nTest: tests/test_far.py, test_near.py, test_gone.py   Tutorial: 07\n"""\n'
    (tmp_path / "minidl/comm/ring.py").write_text(text)
    assert own_tests("minidl/comm/ring.py") == [
        "tests/comm/test_near.py", "tests/comm/test_ring.py", "tests/test_far.py"]
    (tmp_path / "minidl/comm/bare.py").write_text("x = 1\n")
    assert own_tests("minidl/comm/bare.py") == ["tests/comm"]


def test_every_file_has_tests_that_exist():
    """If a file has no test, every change in this file survives."""
    for folder in one_token.FOLDERS:
        for path in (mutations.ROOT / "minidl" / folder).rglob("*.py"):
            name = path.relative_to(mutations.ROOT).as_posix()
            assert all((mutations.ROOT / test).exists() for test in own_tests(name)), name


BRANCHES = '''LIMIT = 3


def f(x, scale=2):
    if x > LIMIT:
        return (x *
                scale)
    elif x == 0:
        return g(
            lambda: 1)
    return x
'''


def test_a_statement_is_its_lines_and_what_is_outside_of_functions_is_what_uses_it():
    lines = [record.lines_of_statement(BRANCHES, number) for number in range(1, 12)]
    body, whole, called = {*range(5, 12)}, {6, 7}, {9, 10}
    assert lines == [body, body, body, body, {5}, whole, whole, {8}, called, called, {11}]
    assert record.lines_of_statement("A = 1\nB = 2", 2) == {1, 2}


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """Yields a copy of one module and its tests, without the rest of minidl."""
    for name, text in {
            "minidl/__init__.py": "",
            "minidl/alike.py": "def f(x):\n    return x if x > 3 else x + 0\n\n\n"
                               "def g(x):\n    return x + 1\n",
            "tests/test_alike.py": "from minidl import alike\n\n\ndef test_f():\n"
                                   "    assert alike.f(2) == 2 and alike.f(9) == 9\n",
            "tests/test_far.py": "import subprocess\nimport sys\n\n\ndef test_red():\n"
                                 "    assert False\n\n\ndef test_g():\n    subprocess.run([sys."
                                 "executable, '-c', 'import minidl.alike as a; assert a.g(1) == 2'"
                                 "], check=True)\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copytree(mutations.ROOT / "tests/reached", tmp_path / "tests/reached")

    class Plain(mutations.Copy):
        def __init__(self, folder):
            self.root, self.server = folder, mutations.Server(folder, imported=())

    monkeypatch.setattr(one_token, "ROOT", tmp_path)
    with contextlib.closing(Plain(tmp_path)) as made:
        yield made


FILE = "minidl/alike.py"


@pytest.mark.slow
def test_the_record_has_the_lines_of_each_test_file_and_of_its_child_processes(copy, tmp_path):
    record.record(copy, tmp_path / "record")
    tests = json.loads((tmp_path / "record").read_text())
    assert {name: (test["red"], test["reached"][FILE]) for name, test in tests.items()} == {
        "tests/test_alike.py": ([], [1, 2, 5]),
        "tests/test_far.py": (["tests/test_far.py::test_red"], [1, 5, 6])}


@whole_form
@pytest.mark.slow
def test_a_change_meets_its_own_tests_then_those_that_reach_it_without_red_ones(copy, tmp_path):
    record.record(copy, tmp_path / "record")
    steps = one_token.steps_of(tmp_path / "record")
    some = changes(FILE, (tmp_path / FILE).read_text())
    one_token.go([copy], some, steps, one_token.Results(tmp_path / "log"))
    results = one_token.Results(tmp_path / "log")  # what a later run reads from the log
    survived = ["survived"] * 3
    assert {(change.line, change.new): results.of(change, steps) for change in some} == {
        (2, ">="): survived, (2, "4"): survived, (2, "-"): survived, (2, "1"): ["caught"],
        (6, "-"): ["survived", "caught"], (6, "0"): ["survived", "caught"]}


def test_what_is_late_runs_again_alone_and_what_is_known_does_not(copy, tmp_path):
    some = changes(FILE, (tmp_path / FILE).read_text())
    begun, results = [], one_token.Results()

    def step(_, change):
        begun.append(change)
        twice = begun.count(change) == 2
        return ("survived" if twice and change == some[1] else "late", "")

    results.add(some[0], "step", "caught", "", 0)
    one_token.go([copy, copy], some[:3], {"step": step}, results)
    assert sorted(begun[:2]) == sorted(begun[2:]) == sorted(some[1:3])
    words = [results.of(change, ["step"]) for change in some[:4]]
    assert words == [["caught"], ["survived"], ["late"], []]


@pytest.mark.slow
def test_a_test_that_runs_out_of_time_is_late_and_not_caught(copy, tmp_path):
    (tmp_path / "tests/test_slow.py").write_text(
        "import time\n\nimport pytest\nfrom minidl import alike\n\n\n"
        "@pytest.mark.timeout(0.2)\ndef test_wait():\n    time.sleep(alike.g(0) == 0 and 9)\n")
    change, = (change for change in changes(FILE, (tmp_path / FILE).read_text())
               if (change.line, change.new) == (6, "0"))
    assert one_token.meet(copy, change, ["tests/test_slow.py"], 30)[0] == "late"
    assert one_token.meet(copy, change, ["tests/test_alike.py"], 30)[0] == "survived"
