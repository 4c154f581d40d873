"""minidl/course/comments.py: a reader of Chinese alone can read tutorials 00 to 07, and their code
is the same."""

import ast
import re

import pytest

from minidl import text as text_of_minidl
from minidl.course import comments, exercise, handout, language, notebook, report
from minidl.course.comments import in_language
from minidl.course.language import digest
from minidl.text import ROOT, width
from tests.course.behind import SCRIPTS, TUTORIALS
from tests.course.test_language import CHINESE


@pytest.fixture
def zh(monkeypatch):
    monkeypatch.setenv("MINIDL_LANG", "zh")


def test_the_kernels_that_tutorials_name_are_among_them():
    assert {"add3.cu", "tour.cu", "softmax.cu"} <= {
        path.name for path in SCRIPTS if path.suffix == ".cu"}


def test_the_comments_of_a_script_are_found():
    found = comments.comments(
        '"""Head.\n\nStory.\n"""\n\nx = "# none"  # behind\n# two\n#   lines\n\n\ndef f():\n'
        '    """What f does."""\n    # >>> exercise 08a: twice\n    # The task.\n    y = 1\n'
        '    # <<<\n    # after\n')
    assert [(c.first, c.last, c.text) for c in found] == [
        (0, 4, "Head.\n\nStory.\n"), (5, 6, "behind"), (6, 8, "two\n  lines"),
        (11, 12, "What f does."), (13, 14, "The task."), (16, 17, "after")]
    found = comments.comments(
        'KERNEL = """\n// A kernel.\n__global__ void f() {\n  // >>> exercise 08b: a step\n'
        '  // Two lines\n  // of a task.\n  g();  // done\n  // <<<\n}\n"""\nx = "//"  # none\n')
    assert [(c.first, c.last, c.mark, c.text) for c in found] == [
        (1, 2, "//", "A kernel."), (4, 6, "//", "Two lines\nof a task."), (6, 7, "//", "done"),
        (10, 11, "#", "none")]
    assert [c.text for c in comments.comments(exercise.read(ROOT / "kernels/add3.cu"))][1:3] == [
        "Naive: one launch for t = a + b, and one launch for out = t + c.",
        "guard: the last block may reach past the end"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_in_chinese_has_the_same_code_and_no_english_comment(path, zh):
    """None that has Chinese."""
    english = exercise.read(path)
    text = in_language(english)
    known = comments.known("zh")
    left = [c.text for c in comments.comments(text) if known.get(digest(c.text), c.text) != c.text]
    assert CHINESE.search(text) and not left
    wide = [line for line in text.splitlines() if width(line) > 100 and line not in english]
    assert not wide, f"docs/zh/comments.po: wider than 100 columns in {path.name}: {wide}"
    assert in_language(text) == text and text.count("\n") > 40
    assert code(text) == code(english)
    assert [r.id for r in exercise.regions(text)] == [r.id for r in exercise.regions(english)]


def of_kernel(text):
    return [line.split("//")[0].rstrip() for line in text.splitlines()
            if line.split("//")[0].strip()]


def code(text):
    """Without comments and docstrings."""
    if text.startswith("//"):
        return of_kernel(text)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        is_def = isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        if is_def and ast.get_docstring(node):
            node.body[0].value.value = ""
        if isinstance(node, ast.Constant) and "__global__" in str(node.value):
            node.value = "\n".join(of_kernel(node.value))
    return ast.dump(tree)


def test_a_script_in_chinese_is_not_called_old(zh, monkeypatch, tmp_path):
    """Its own `--help` looks up the head that stands in it."""
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "tutorials/07.txt").write_text(f"=== head of {digest('A ring.')}\n环。\n")
    (tmp_path / "comments.po").write_text("")
    for module in (language, text_of_minidl):
        monkeypatch.setattr(module, "folder", lambda language: tmp_path)
    assert in_language('"""A ring."""\n\nx = 1\n') == '"""环。"""\n\nx = 1\n'
    assert language.translated("07", "head", "A ring.") == "环。"
    assert language.translated("07", "head", "环。\n") == "环。\n"


def test_what_has_no_chinese_stays_english(zh):
    text = '"""A head."""\n\nx = 1  # of no tutorial\n# guard\n'
    assert in_language(text) == text.replace("# guard", "# 边界判断")


def test_a_readers_own_comments_stay(zh):
    text = in_language(exercise.blank(exercise.read(TUTORIALS[-1])))
    region = exercise.regions(text)[0]
    own = exercise.fill(text, {region.id: exercise.body(text, region).split("raise")[0]
                               + "# my guess\npass"})
    assert "# my guess" in own and in_language(own) == own


def test_a_notebook_is_in_chinese(zh):
    def words(text):
        return [cell["source"] for cell in notebook.notebook(text, "x.py")["cells"]
                if cell["cell_type"] == "markdown"]

    english = exercise.read(TUTORIALS[7])
    for chinese, before in zip(words(in_language(english)), words(english), strict=True):
        assert CHINESE.search(chinese) or chinese == before  # no Chinese yet
        assert not re.search("[\u4e00-\u9fff]\n[\u4e00-\u9fff]", chinese)  # Markdown: a space


def test_a_handout_is_in_chinese_and_its_blanks_are_blank_to_everyone(tmp_path, zh, monkeypatch):
    course, answers = tmp_path / "course", tmp_path / "answers"
    (tmp_path / "root").mkdir()
    for name in ("tutorials", "kernels", "README.zh.md"):
        (tmp_path / "root" / name).symlink_to(ROOT / name)
    course.mkdir()
    handout._students(course, ["02", "07"], False, tmp_path / "root")
    assert exercise.read(course / "README.md").startswith("# 练习\n")
    assert "# 本课程的练习" in exercise.read(course / "course.cfg")
    ring = exercise.read(course / "work/07_ring.py")
    assert CHINESE.search(ring) and not answers.exists()
    assert CHINESE.search(exercise.read(course / "work/add3.cu"))
    for language_of_reader in ("zh", "en"):
        monkeypatch.setenv("MINIDL_LANG", language_of_reader)
        for source in (course / "tutorials/07_ring.py", course / "work/add3.cu"):
            text = exercise.read(source)
            assert exercise.blank(text) == text == in_language(text)
    monkeypatch.chdir(course)
    assert report._regions_of(course / "work/07_ring.py").keys() == {"07a", "07b", "07c"}
