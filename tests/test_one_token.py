"""Changes of one token are those of the table, and leave out what only makes messages."""


import contextlib

import pytest

from tests import mutations, one_token
from tests.conftest import whole_form
from tests.one_token import changed_line, changes, own_tests

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


def test_the_tests_of_a_file_are_its_twin_and_those_that_it_names(tmp_path):
    (tmp_path / "minidl/comm").mkdir(parents=True)
    (tmp_path / "tests/comm").mkdir(parents=True)
    (tmp_path / "tests/test_far.py").touch()
    for name in ("test_ring.py", "test_near.py", "test_other.py"):
        (tmp_path / "tests/comm" / name).touch()
    text = '"""A ring.\n\nTest: tests/test_far.py, test_near.py, test_gone.py   Tutorial: 07\n"""\n'
    (tmp_path / "minidl/comm/ring.py").write_text(text)
    assert own_tests("minidl/comm/ring.py", tmp_path) == [
        "tests/comm/test_near.py", "tests/comm/test_ring.py", "tests/test_far.py"]
    (tmp_path / "minidl/comm/bare.py").write_text("x = 1\n")
    assert own_tests("minidl/comm/bare.py", tmp_path) == ["tests/comm"]


def test_every_file_has_tests_that_exist():
    """Else a change in it would survive whatever it does."""
    for folder in one_token.FOLDERS:
        for path in (mutations.ROOT / "minidl" / folder).rglob("*.py"):
            name = path.relative_to(mutations.ROOT).as_posix()
            assert all((mutations.ROOT / test).exists() for test in own_tests(name)), name


@pytest.fixture
def copy(tmp_path):
    """A copy of one module and its test, without minidl."""
    (tmp_path / "alike.py").write_text("def f(x):\n    return x if x > 3 else x + 0\n")
    (tmp_path / "test_alike.py").write_text(
        "import alike\n\n\ndef test_f():\n    assert alike.f(2) == 2 and alike.f(9) == 9\n")

    class Plain(mutations.Copy):
        def __init__(self, folder):
            self.root, self.server = folder, mutations.Server(folder, imported=())

    with contextlib.closing(Plain(tmp_path)) as made:
        yield made


@pytest.mark.slow
def test_a_change_that_a_test_sees_is_caught_and_another_survives(copy):
    met = {change.new: one_token.meet(copy, change, ["test_alike.py"], 30)
           for change in changes("alike.py", (copy.root / "alike.py").read_text())}
    assert met == {">=": "survived", "4": "survived", "-": "survived", "1": "caught"}


@whole_form
@pytest.mark.slow
def test_the_whole_suite_counts_without_what_is_red_anyway(copy):
    (copy.root / "test_more.py").write_text(
        "import alike\n\n\ndef test_red():\n    assert False\n\n\n"
        "def test_another():\n    assert alike.f(3) == 3\n")
    status, red = one_token.whole_suite(copy)
    assert (status, red) == (1, ["test_more.py::test_red"])
    made = {change.new: change
            for change in changes("alike.py", (copy.root / "alike.py").read_text())}
    assert one_token.meets_all_tests(copy, made["-"], red) == "survived"
    assert one_token.meets_all_tests(copy, made["1"], red) == "caught"
