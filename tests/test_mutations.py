"""Tests that the lists of planted bugs fit the sources, and that tests/mutations.py works.

`make mutations` plants the bugs of the lists and runs their tests. This file plants none of these
bugs. A file of minidl/ needs no planted bug, because people should read the lists.
"""

import argparse
import ast
import contextlib
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import mutations
from tests.conftest import whole_form
from tests.planted import bug as planted_bug
from tests.planted.bug import Bug, Gone, located, places, test_located

ALL = mutations.every_bug()


def test_every_bug_has_its_text_and_its_tests():
    lost = mutations.lost()
    assert not lost, "\n\n".join(lost)


def test_every_bug_changes_its_file_into_another_program():
    wrong = []
    for bug in ALL:
        source = (mutations.ROOT / (now := located(bug)).file).read_text()
        what = "" if now.planted(source) != source else "it changes nothing"
        try:
            if now.file.endswith(".py"):
                ast.parse(now.planted(source))
        except SyntaxError as error:
            what = f"the file with the bug is no Python: {error}"
        if what:
            wrong.append(f"{planted_bug.listed_in(bug)}, {bug.name}: {what}. Write another "
                         "replacement, or delete the entry")
    assert not wrong, "\n".join(wrong)


def test_each_bug_has_a_name_of_its_own():
    twice = [name for name, n in Counter(bug.name for bug in ALL).items() if n > 1]
    assert not twice, f"tests/planted/*.py: give one of the two another name: {twice}"


def test_a_text_is_at_most_one_line():
    long = [bug.name for bug in ALL if len(bug.text) > 100 or "\n" in bug.text + bug.becomes]
    assert not long, f"tests/planted/*.py: choose a smaller part of the line for {long}"


def test_the_page_is_the_list():
    assert mutations.PAGE.is_file() and mutations.PAGE.read_text() == mutations.table(ALL), (
        "docs/planted_bugs.md is not what tests/planted/*.py say now. Run: make register")


# ---- where a text is found

PYTHON = '''
class Ring:
    """A ring: x = a + b."""

    @property
    def step(self):
        return add(self.left - 1, self.right)

    def other(self):
        def inside():
            return self.left - 1
        return inside() - self.left


LIMIT = 3
'''


@pytest.mark.parametrize("text", [
    "add(self.left - 1, self.right)", "self.left-1", "return add( self.left", "@property"])
def test_white_space_does_not_matter(text):
    written_otherwise = PYTHON.replace(
        "add(self.left - 1, self.right)",
        "add(\n            self.left  # the neighbour\n            -1,\n            self.right,\n"
        "        )")
    for source in (PYTHON, written_otherwise):
        assert len(places(source, "ring.py", "Ring.step", text)) == 1


@pytest.mark.parametrize("where, text, n", [
    ("Ring.step", "self.left - 1", 1), ("step", "self.left - 1", 1), ("inside", "self.left", 1),
    ("Ring.other.inside", "self.left - 1", 1), ("Ring.other", "self.left", 2),
    ("Ring", "self.left - 1", 2), ("", "self.left - 1", 2), ("LIMIT", "3", 1), ("Ring", "3", 0),
    ("Ring", "lef", 0), ("Ring", "self.left -", 2), ("Ring", "eft", 0), ("away", "self", 0)])
def test_a_text_is_looked_for_inside_of_its_function(where, text, n):
    assert len(places(PYTHON, "ring.py", where, text)) == n


def test_a_sign_is_not_found_inside_of_a_longer_one():
    source = "if a <= b: a -= b\nif a < b: a - b\n"
    assert places(source, "a.py", "", "a <") == [(21, 24)]
    assert places(source, "a.py", "", "a -") == [(28, 31)]
    assert places(source, "a.py", "", "<") == [(23, 24)]


CUDA = """
#define TWICE(x) \\
  ((x) * 2)
// row(x) { x + 1 }
template <int N>
__device__ float row(const float* x) {
  if (x[0] > 0) { return x[0] + 1; }  // "}"
  return x[0];
}

extern "C" __global__ void
rows(float* y) {
  y[0] = row(y) + 1;
}
struct Slot {
  int stop = 0 + 1;
};
"""


@pytest.mark.parametrize("where, text, n", [
    ("row", "+ 1", 1), ("rows", "+ 1", 1), ("Slot", "+ 1", 1), ("", "+ 1", 4), ("TWICE", "* 2", 1),
    ("row", "int N", 1), ("rows", "__global__", 1), ("row", "y", 0), ("away", "+ 1", 0)])
def test_kernels_functions_structs_and_macros_are_found_by_name(where, text, n):
    assert len(places(CUDA, "rows.cu", where, text)) == n


# ---- an entry when files change

BUG = Bug("the sum is a difference", "minidl/sums.py", "total", "a + b", "a - b",
          "tests/test_sums.py::test_total")
SUMS = "def total(a, b):\n    return a + b\n"
IN_CLASS = "class Sums:\n    def total(self, a, b):\n        return a + b\n"
CHECK = "def test_total():\n    pass\n"


def checkout(folder, **files):
    """Writes these files into a folder, and returns the folder. Two underscores in a name mean a
    slash."""
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize("files, where", [
    ({"minidl__sums": SUMS}, ("minidl/sums.py", "total")),
    ({"minidl__sums": IN_CLASS}, ("minidl/sums.py", "total")),
    ({"minidl__deep__adding": SUMS}, ("minidl/deep/adding.py", "total")),
    ({"minidl__deep__sums": SUMS, "minidl__adding": SUMS}, ("minidl/deep/sums.py", "total")),
    ({"minidl__sums": "x = 1\n", "minidl__adding": SUMS}, ("minidl/adding.py", "total")),
    ({"minidl__sums": SUMS.replace("total", "add_up")}, ("minidl/sums.py", "add_up"))],
    ids=["as it was", "in a class now", "file renamed", "file in another folder",
         "function in another file", "function renamed"])
def test_what_moved_or_was_renamed_is_found(tmp_path, files, where):
    now = located(BUG, checkout(tmp_path, **files))
    assert (now.file, now.where) == where


@pytest.mark.parametrize("files, message", [
    ({"minidl__sums": SUMS.replace("a + b", "b + a")}, "no longer in total of minidl/sums.py"),
    ({"minidl__sums": SUMS + "    # a + b\n    a + b\n"}, "is there 3 times: line 2, line 3"),
    ({"minidl__one": SUMS, "minidl__two": SUMS},
     "2 times: in minidl/one.py, in minidl/two.py"),
    ({"minidl__other": "x = 1\n"}, "Delete the entry .*or give the new text")])
def test_what_is_gone_or_not_alone_is_said_with_what_to_write(tmp_path, files, message):
    with pytest.raises(Gone, match=f"(?s)the sum is a difference.*a \\+ b.*{message}"):
        located(BUG, checkout(tmp_path, **files))


def test_a_test_that_moved_is_found_and_one_that_is_gone_is_said(tmp_path):
    checkout(tmp_path, tests__deep__test_adding=CHECK)
    assert test_located(BUG, tmp_path).test == "tests/deep/test_adding.py::test_total"
    checkout(tmp_path, tests__test_more=CHECK)
    with pytest.raises(Gone, match="no test tests/test_sums.py::test_total .found 2 times"):
        test_located(BUG, tmp_path)
    checkout(tmp_path, tests__deep__test_sums=CHECK)  # the same file in another folder
    assert test_located(BUG, tmp_path).test == "tests/deep/test_sums.py::test_total"


def test_the_names_in_a_list_are_repaired_and_nothing_else():
    text = ('BUGS = [\n    Bug("a", "minidl/sums.py", "total", "minidl", "x",\n'
            '        "tests/test_sums.py"\n        "::test_total"),\n'
            '    Bug("b", "minidl/sums.py", "total", "y", "x", "tests/test_sums.py::test_x"),\n]\n')
    before = Bug("a", "minidl/sums.py", "total", "minidl", "x", "tests/test_sums.py::test_total")
    now = Bug("a", "minidl/adding.py", "add_up", "minidl", "x", "tests/test_adding.py::test_total")
    mended, said = mutations.repaired(text, before, now)
    first, second = mended.split('Bug("b"')
    assert second == text.split('Bug("b"')[1]
    assert first == ('BUGS = [\n    Bug("a", "minidl/adding.py", "add_up", "minidl", "x",\n'
                     '        "tests/test_adding.py"\n        "::test_total"),\n    ')
    assert len(said) == 3 and "minidl/sums.py is now minidl/adding.py" in said
    assert mutations.repaired(mended, now, now) == (mended, [])


# ---- which bugs are planted

def asked(**options):
    return argparse.Namespace(**{"words": [], "sample": None, "changed": None, "most": 60,
                                 "seed": 1, "part": "1/1", **options})


def test_a_sample_goes_by_its_seed_and_parts_are_all():
    first = mutations.chosen(ALL, asked(sample=9))
    assert len(set(first)) == 9 and first == mutations.chosen(ALL, asked(sample=9))
    assert first != mutations.chosen(ALL, asked(sample=9, seed=2))
    parts = [mutations.chosen(ALL, asked(part=f"{i}/3")) for i in (1, 2, 3)]
    assert sum(parts, []) == ALL


def test_a_changed_entry_file_or_test_is_planted(monkeypatch):
    """An entry that names another test than before is a new entry. So CI plants its bug."""
    pointed, moved, seen, same = random.Random(1).sample(
        [bug for bug in ALL if mutations.found(bug) == bug], 4)
    files = f"{moved.file}\n{seen.test.split('::')[0]}\n"
    others = {name for bug in (moved, seen) for name in (bug.file, bug.test.split("::")[0])}
    assert not others & {same.file, same.test.split("::")[0]}, "draw others"
    said = {"show": "BUGS = []", "diff": files, "ls-files": ""}
    monkeypatch.setattr(mutations, "git", lambda *arguments: said[arguments[0]])
    monkeypatch.setattr(mutations, "bugs_in", lambda text: [moved, seen, same])
    entries, rest = mutations.changed([pointed, moved, seen, same], "base")
    assert entries == [pointed] and rest == [moved, seen]


def test_no_more_than_the_most_are_planted_and_the_sample_comes_on_top(monkeypatch, capsys):
    monkeypatch.setattr(mutations, "changed", lambda bugs, base: (ALL[:30], ALL[30:100]))
    picked = mutations.chosen(ALL, asked(changed="", sample=5))
    assert len(set(picked)) == 65 and set(ALL[:30]) <= set(picked)
    assert "40 are left out" in capsys.readouterr().out


def test_without_git_the_sample_is_planted_and_all_files_are_copied(monkeypatch, capsys):
    monkeypatch.setattr(mutations, "git", lambda *arguments: None)
    assert len(mutations.chosen(ALL, asked(changed="", sample=5, seed=0))) == 5
    assert "only the sample runs" in capsys.readouterr().out
    names = mutations.files_of_checkout()
    assert {"minidl/tensor.py", "kernels/sgd.cu", "setup.cfg"} <= set(names)
    assert not [name for name in names if name.startswith((".venv", ".git/"))]


# ---- planting a bug

# The test notices the bug x * 3, and does not notice the bug x * x.
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


def doubling(becomes, test="test_double.py::test_double"):
    return Bug("double", "minidl_like.py", "double", "x + x", becomes, test)


@pytest.mark.slow
@pytest.mark.parametrize("becomes, word",
                         [("x * 3", "caught"), ("x * x", "SURVIVED"), ("x +", "BROKEN")])
def test_a_bug_is_caught_survives_or_breaks_the_import(tmp_path, copy, becomes, word):
    bug = doubling(becomes)
    assert mutations.baseline(copy, bug) == ""
    assert mutations.verdict(copy.pytest_with(bug)) == word
    assert (tmp_path / "minidl_like.py").read_text() == FILE


def test_a_test_that_does_not_end_without_a_bug_proves_nothing(copy, monkeypatch):
    endless = mutations.Run(None, False, False, "", "no end")
    monkeypatch.setattr(copy, "pytest", lambda tests, on_stand_in: endless)
    bug = doubling("x")
    assert "no end" in mutations.baseline(copy, bug)
    assert mutations.verdict(endless) == "HANGS"


@whole_form
def test_a_test_that_never_ends_is_ended_with_all_that_it_started(copy, monkeypatch):
    monkeypatch.setattr(mutations, "RUN_LIMIT_S", 3)
    (copy.root / "test_double.py").write_text(
        "import subprocess, time\n\n\ndef test_endless():\n"
        "    open('pid', 'w').write(str(subprocess.Popen(['sleep', '1000']).pid))\n"
        "    time.sleep(1000)\n")
    run = copy.pytest(["test_double.py"])
    assert (run.status, run.output) == (None, "no end within 3 s")
    pid = int((copy.root / "pid").read_text())
    for _ in range(100):  # the process is killed; the system's first process removes it later
        if not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text():
            return
        time.sleep(0.05)
    pytest.fail(f"process {pid} goes on")


@pytest.mark.slow
def test_a_test_that_fails_or_skips_without_a_bug_proves_nothing(tmp_path, copy):
    (tmp_path / "test_double.py").write_text(
        "import pytest\n\n\ndef test_red():\n    assert False\n\n\n"
        "@pytest.mark.skip(reason='no')\ndef test_skip():\n    pass\n")
    red, skipped = (doubling("x", f"test_double.py::test_{name}") for name in ("red", "skip"))
    assert mutations.baseline(copy, skipped) == "skipped here"
    assert mutations.baseline(copy, red).startswith("fails without the bug")
