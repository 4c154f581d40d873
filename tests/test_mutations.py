"""The lists of planted bugs fit the sources, name tests that exist, and leave no technique out.

`make mutations` plants them and runs the tests; here nothing is planted.
"""

import ast
import contextlib
import functools
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import mutations
from tests.conftest import EVERY
from tests.mutations import ROOT, Mutation

ALL = mutations.every_mutation()
MAP = (ROOT / "docs" / "map.md").read_text()
# Files of the map in which no bug is planted, and why.
WITHOUT = {
    "minidl/cli/main.py": "words of the command line, handed on to what is tested where it is",
    "minidl/cli/doctor.py": "says what it finds on this machine",
    "minidl/cli/doctor_links.py": "says what it measures on this machine",
    "minidl/cuda/__init__.py": "hands on to the files of the folder",
    "minidl/cuda/checks/sentences.py": "makes findings into sentences: other words are no bug",
    "minidl/cuda/checks/kinds.py": "names and remedies: other words are no bug",
}


@functools.cache
def text_of(file):
    return (ROOT / file).read_text()


@functools.cache
def functions_of(file):
    tree = ast.parse(text_of(file))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_text_is_there_once_and_the_bug_changes_it():
    wrong = []
    for i, mutation in enumerate(ALL):
        text = text_of(mutation.file)
        try:
            if mutation.planted(text) == text:
                wrong.append(f"{mutation.name}: changes nothing")
            if mutation.file.endswith(".py") and (EVERY or i % 3 == 0):
                ast.parse(mutation.planted(text))  # else no plausible bug
        except (ValueError, SyntaxError) as error:
            wrong.append(f"{mutation.name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_each_bug_has_a_name_of_its_own():
    assert [name for name, n in Counter(m.name for m in ALL).items() if n > 1] == []


def test_every_named_test_exists():
    missing = []
    for named in {test for m in ALL for test in m.tests}:
        file, _, name = named.partition("::")
        if not (ROOT / file).is_file():
            missing.append(named)
        elif name and name.split("[")[0] not in functions_of(file):
            missing.append(named)
    assert missing == []


def test_every_file_of_the_map_has_a_planted_bug_or_a_reason_to_have_none():
    files = set(re.findall(r"\]\(\.\./((?:minidl|kernels)/[\w/]+\.(?:py|cuh?|cpp|h))\)", MAP))
    assert len(files) > 100
    planted = {m.file for m in ALL}
    assert sorted(files - planted - set(WITHOUT)) == []
    assert sorted(set(WITHOUT) & planted) == [] and sorted(set(WITHOUT) - files) == []


def test_the_table_of_the_tests_readme_is_the_list():
    _, rest = mutations.README.read_text().split(mutations.BEGIN)
    assert rest.split(mutations.END)[0] == mutations.table(ALL), (
        "write it anew: python tests/mutations.py --table")


def test_a_text_that_is_gone_or_ambiguous_is_an_error():
    mutation = Mutation("sum", "a.py", "a + b", "a - b", "tests/test_a.py")
    assert mutation.planted("y = a + b\n") == "y = a - b\n"
    for text in ("y = b + a\n", "y = a + b\nz = a + b\n"):
        with pytest.raises(ValueError, match="sum: want once in a.py, found [02] times"):
            mutation.planted(text)


# A file with one bug that its test sees and one that it does not.
FILE = "def double(x):\n    return x + x\n"
TEST = """
import minidl_like


def test_double():
    assert minidl_like.double(2) == 4
"""


class Plain(mutations.Copy):
    """A copy of one module and its test, without minidl."""

    def __init__(self, folder):
        self.root, self.server = folder, mutations.Server(folder, imported=())
        (folder / "minidl_like.py").write_text(FILE)
        (folder / "test_double.py").write_text(TEST)


@pytest.fixture
def copy(tmp_path):
    with contextlib.closing(Plain(tmp_path)) as made:
        yield made


@pytest.mark.slow
def test_a_bug_is_caught_survives_or_breaks_the_import(tmp_path, copy):

    def verdict(new, test="test_double.py::test_double"):
        bug = Mutation("double", "minidl_like.py", "x + x", new, test)
        assert mutations.baseline(copy, [bug]) == {}
        found = mutations.verdict(copy.pytest_with(bug))
        assert (tmp_path / "minidl_like.py").read_text() == FILE
        return found

    assert verdict("x * 3") == "caught"
    assert verdict("x * x") == "SURVIVED"
    assert verdict("x +") == "BROKEN"


def test_a_test_that_does_not_end_without_a_bug_proves_nothing(copy, monkeypatch):
    test = "test_double.py::test_double"
    endless = mutations.Run(None, False, False, "", "no end")
    monkeypatch.setattr(copy, "pytest", lambda tests, on_stand_in: endless)
    bug = Mutation("double", "minidl_like.py", "x + x", "x", test)
    assert "no end" in mutations.baseline(copy, [bug])[test, False]
    assert mutations.verdict(endless) == "HANGS"


def test_a_test_that_never_ends_is_ended_with_all_that_it_started(copy, monkeypatch):
    monkeypatch.setattr(mutations, "RUN_LIMIT_S", 3)
    (copy.root / "test_double.py").write_text(
        "import subprocess, time\n\n\ndef test_endless():\n"
        "    open('pid', 'w').write(str(subprocess.Popen(['sleep', '1000']).pid))\n"
        "    time.sleep(1000)\n")
    run = copy.pytest(["test_double.py"])
    assert (run.status, run.output) == (None, "no end within 3 s")
    pid = int((copy.root / "pid").read_text())
    for _ in range(100):  # killed, and then collected by the system's first process
        if not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} goes on")


@pytest.mark.slow
def test_a_test_that_fails_or_skips_without_a_bug_proves_nothing(tmp_path, copy):
    (tmp_path / "test_double.py").write_text(
        "import pytest\n\n\ndef test_red():\n    assert False\n\n\n"
        "@pytest.mark.skip(reason='no')\ndef test_skip():\n    pass\n")
    bugs = [Mutation(name, "minidl_like.py", "x + x", "x", f"test_double.py::{name}")
            for name in ("test_red", "test_skip")]
    useless = mutations.baseline(copy, bugs)
    assert useless["test_double.py::test_skip", False] == "skipped here"
    assert useless["test_double.py::test_red", False].startswith("fails without the bug")
