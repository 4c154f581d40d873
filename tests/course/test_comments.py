"""minidl/course/comments.py: a reader of Chinese alone can read tutorials 00 to 07, and their code
is the same."""

import ast
import re

import pytest

from minidl.course import comments, exercise, handout, language, notebook, report
from minidl.course.comments import in_language
from minidl.course.language import ROOT, digest, width
from tests.course.messages import messages
from tests.course.test_language import CHINESE, SHOWN, TUTORIALS

WORDS = re.compile("[A-Za-z]{3}.* .*[A-Za-z]{3}")
SCRIPTS = list(dict.fromkeys([*TUTORIALS, *(
    kernel for path in TUTORIALS
    for kernel in [*exercise.tutorials().get(path.name[:2], [path])[1:],
                   *comments.kernels_named(exercise.read(path))])]))


@pytest.fixture
def zh(monkeypatch):
    monkeypatch.setenv("MINIDL_LANG", "zh")


def test_the_kernels_that_tutorials_name_are_among_them():
    assert {"add3.cu", "tour.cu", "layer_norm.cu", "softmax.cu", "adamw.cu"} == {
        path.name for path in SCRIPTS if path.suffix == ".cu"}


def test_the_comments_of_a_script_are_found():
    found = comments.comments(
        '"""Head.\n\nStory.\n"""\n\nx = "# none"  # behind\n# two\n#   lines\n\n\ndef f():\n'
        '    """What f does."""\n    # >>> exercise 08a: twice\n    # The task.\n    y = 1\n'
        '    # <<<\n    # after\n')
    assert [(c.first, c.last, c.text) for c in found] == [
        (0, 4, "Head.\n\nStory.\n"), (5, 6, "behind"), (6, 8, "two\n  lines"),
        (11, 12, "What f does."), (13, 14, "The task."), (16, 17, "after")]
    assert [c.text for c in comments.comments(exercise.read(ROOT / "kernels/add3.cu"))][1:3] == [
        "Naive: one launch for each plus sign, t = a + b, then out = t + c.",
        "guard: the last block may reach past the end"]


def sentences():
    """{where: the English sentences that a reader meets there}: in the scripts, heads, tasks,
    comments; in these, the graders and the commands, what is printed."""
    found = {path: messages(exercise.read(path)) for path in SHOWN}
    for path in SCRIPTS:
        text = exercise.read(path)
        found.setdefault(path, []).extend(c.text for c in comments.comments(text))
        found[path] += [r.title for r in exercise.regions(text) if " " in r.title]
    return found


def test_every_sentence_of_tutorials_00_to_07_has_its_chinese():
    known, printed = comments.known("zh"), language.table("zh")
    missing = {path.name: lost for path, texts in sentences().items()
               if (lost := [t for t in texts if t not in printed and digest(t) not in known])}
    n = sum(map(len, sentences().values()))
    assert not missing, f"{sum(map(len, missing.values()))} of {n} have no Chinese: {missing}"
    assert n > 800


def test_every_translated_comment_is_one_of_the_scripts():
    in_use = {digest(c.text) for path in SCRIPTS for c in comments.comments(exercise.read(path))}
    left = [text for text in language.table("zh", "comments") if digest(text) not in in_use]
    assert not left, f"no script has these any more: {left}"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_in_chinese_has_the_same_code_and_no_english_comment(path, zh):
    english = exercise.read(path)
    text = in_language(english)
    for comment in comments.comments(text):
        assert CHINESE.search(comment.text) or not WORDS.search(comment.text), comment
    assert all(width(line) <= 100 for line in text.splitlines())
    assert in_language(text) == text and text.count("\n") > 40
    assert code(text) == code(english)
    assert [r.id for r in exercise.regions(text)] == [r.id for r in exercise.regions(english)]


def code(text):
    """Without comments and docstrings."""
    if text.startswith("//"):
        return [line.split("//")[0].rstrip() for line in text.splitlines()
                if line.split("//")[0].strip()]
    tree = ast.parse(text)
    for node in ast.walk(tree):
        is_def = isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        if is_def and ast.get_docstring(node):
            node.body[0].value.value = ""
    return ast.dump(tree)


def test_a_script_in_chinese_is_not_called_old(zh):
    """Its own `--help` looks up the head that stands in it."""
    english = exercise.read(TUTORIALS[-1]).split('"""')[1]
    head = language.translated(TUTORIALS[-1].name[:2], "head", english)
    again = language.translated(TUTORIALS[-1].name[:2], "head", f"{head}\n")
    assert CHINESE.search(head) and again == f"{head}\n"


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
    made = notebook.notebook(in_language(exercise.read(TUTORIALS[7])), "x.py")
    words = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown"]
    assert len(words) == 5 and all(CHINESE.search(text) for text in words)
    assert not re.search("[\u4e00-\u9fff]\n[\u4e00-\u9fff]", words[0])  # Markdown: a space
    assert "每个 rank 的初始权重相同" in "".join(cell["source"] for cell in made["cells"])


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
    assert "环上的数据并行训练" in ring and 'Error("练习 07a（' in ring and not answers.exists()
    assert "不同时" not in ring and "边界判断" in exercise.read(course / "work/add3.cu")
    for language_of_reader in ("zh", "en"):
        monkeypatch.setenv("MINIDL_LANG", language_of_reader)
        for source in (course / "tutorials/07_ring.py", course / "work/add3.cu"):
            text = exercise.read(source)
            assert exercise.blank(text) == text == in_language(text)
    monkeypatch.chdir(course)
    assert report._regions_of(course / "work/07_ring.py").keys() == {"07a", "07b", "07c"}
