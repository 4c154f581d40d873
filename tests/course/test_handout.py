"""A course from end to end, without a network: handed out, answered, graded, in a table."""

import ast
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from minidl.cli.main import main
from minidl.course import exercise, grade, handout
from minidl.course.student import Hidden
from tests.conftest import whole_form
from tests.course import examine_answers
from tests.course.planted import mistaken
from tests.test_readme import links

GRADED = ["22"]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A handout, and beside it the course's answers: (handout, answers)."""
    folder = tmp_path_factory.mktemp("course")
    handout.handout(folder / "handout", GRADED, personal=True)
    return folder / "handout", folder / "handout-answers"


def _solution(name):
    return examine_answers._solution(name)


def _stripped(text):
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def test_no_solution_and_no_wrong_answer_is_in_it(course):
    files = [f for f in course[0].rglob("*") if f.suffix in (".py", ".cu", ".md")
             and "minidl" not in f.relative_to(course[0]).parts[:1]]
    texts = {f: f.read_text() for f in files}
    assert len(texts) > 60
    ids = [r.id for number in exercise.tutorials() for s in exercise.sources(number)
           for r in exercise.regions(exercise.read(s))]
    assert len(ids) > 35
    texts = {f: _stripped(text) for f, text in texts.items()}
    for name in ids:
        code = "\n".join(line for line in _stripped(_solution(name)).splitlines()
                         if not line.startswith(("#", "//")))
        assert len(code) > 20 and [f.name for f, text in texts.items() if code in text] == [], name
    assert [f for f, text in texts.items() if "WRONG = {" in text] == []
    assert not any((course[0] / path).exists() for path in handout.FOR_TEACHERS)
    assert all((course[1] / path.name).exists() for path in handout.FOR_TEACHERS)
    assert not any((course[0] / name).exists() for name in ("tests", "benchmarks", ".git"))


def test_every_grader_of_it_stands_alone_and_lost_nothing_it_needs(course):
    """Compiled with every name known: what it calls is there."""
    files = sorted((course[0] / "tutorials" / "graders").glob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text())
        whole = (exercise.ROOT / "tutorials" / "graders" / file.name).read_text()
        names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        assert set(re.findall(r"^def (grade_\w+)", whole, re.M)) <= names
    ran = subprocess.run([sys.executable, "-m", "pyflakes", *files], capture_output=True, text=True)
    assert [line for line in ran.stdout.splitlines() if "imported but unused" not in line] == []


def test_a_reference_is_a_function_that_is_not_there(course):
    text = (course[0] / "tutorials" / "graders" / "06_memory.py").read_text()
    assert "def _fewest(*_):\n    raise Hidden" in text and "_all_cuts" not in text
    with pytest.raises(Hidden):
        grade.load_grader(course[0] / "tutorials" / "graders" / "06_memory.py")._fewest(1, 2, 3)
    assert "_all_cuts" in (course[1] / "graders" / "06_memory.py").read_text()


def test_no_link_of_it_is_dead(course):
    pages = [course[0] / "README.md", *course[0].glob("docs/**/*.md")]
    assert len(pages) > 10
    assert [(page.name, str(f)) for page in pages for f in links(page) if not f.exists()] == []


def test_the_kernels_of_the_framework_compile_and_those_of_an_exercise_say_what_is_missing(course):
    given = (course[0] / "kernels" / "add3.cu").read_text()
    assert "#error" not in given and "max(a + b + c + bias, 0)" in given and "bias[i % cols])" \
        not in given
    work = exercise.blank(given)
    assert work == exercise.blank((exercise.ROOT / "kernels" / "add3.cu").read_text())
    assert '#error "exercise 02a' in work and exercise.blank(work) == work


def _run(folder, command, **variables):
    """A command line of a handout, by the framework in it."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"PATH": path, "OPENBLAS_NUM_THREADS": "1"} | variables
    command = re.sub(r"(?<!\S)minidl(?= )", "python3 -m minidl", command)
    return subprocess.run(command, shell=True, cwd=folder, env=environment, text=True,
                          capture_output=True)


def test_a_blank_tutorial_shows_no_solution(course):
    ran = _run(course[0], "minidl solution 22")
    assert ran.returncode == 2 and "not in this course's handout" in ran.stderr
    assert "blank" in _run(course[0], "minidl progress").stdout


STUDENTS = {  # exercises whose answer is right
    "Ada": ["22a", "22b"],
    "Bob": ["22a"],
    "Chen": [],
}


def _answered(handed, folder, right):
    """A copy of the handout, a student's: solutions, and wrong answers."""
    shutil.copytree(handed, folder)
    for number in GRADED:
        (source,) = exercise.sources(number)
        text, wrong = exercise.read(source), grade.grader(number).WRONG
        for region in exercise.regions(text):
            if region.id not in right:
                code, _ = next(iter(wrong[region.id].values()))
                text = mistaken(text, region.id, code)
        (folder / "work" / source.name).write_text(text)


@whole_form
@pytest.mark.slow
@pytest.mark.timeout(300)  # 25 processes, a second each on an idle machine
def test_a_class_of_three_is_graded_in_gradescopes_folders_by_the_workflow_and_in_a_table(
        course, tmp_path):
    handed, answers = course
    for name, right in STUDENTS.items():
        _answered(handed, tmp_path / "class" / name, right)
    for name, right in STUDENTS.items():
        base = tmp_path / "autograder" / name
        shutil.unpack_archive(answers / "autograder.zip", base / "source")
        (base / "source" / "run_autograder").chmod(0o755)  # as Gradescope does
        shutil.copytree(tmp_path / "class" / name / "work", base / "submission")
        (base / "results").mkdir()
        (base / "submission_metadata.json").write_text(json.dumps({"users": [{"name": name}]}))
        ran = _run(tmp_path, str(base / "source" / "run_autograder"), AUTOGRADER=str(base))
        assert ran.returncode == 0, ran.stderr
        found = json.loads((base / "results" / "results.json").read_text())
        assert found["score"] == 10 * len(right)
        assert [t["number"] for t in found["tests"] if t["status"] == "passed"] == right
        assert sum(t["max_score"] for t in found["tests"]) == 20

    text = (handed / ".github" / "workflows" / "classroom.yml").read_text()
    steps = re.findall(r"command: (.*)\n.*\n *max-score: (\d+)", text)
    assert len(steps) == 2
    points = sum(int(score) for command, score in steps if _run(
        tmp_path / "class" / "Bob", command, GITHUB_ACTOR="Bob").returncode == 0)
    assert points == 10
    assert 'minidl check --student "$GITHUB_ACTOR" --junit results.xml' in text

    ran = _run(handed, f"minidl class {tmp_path / 'class'} --csv {tmp_path / 'points.csv'} "
               f"--answers {answers} --personal")
    assert ran.returncode == 0, ran.stderr
    lines = list(csv.DictReader((tmp_path / "points.csv").read_text().splitlines()))
    assert {line["student"]: line["total"] for line in lines} == {
        "Ada": "20", "Bob": "10", "Chen": "0"}
    assert all((line[name] == "10") == (name in STUDENTS[line["student"]])
               for line in lines for name in STUDENTS["Ada"])


WRONG_USES = {  # the words that refuse it: the arguments of `minidl handout`, in a folder of files
    "here is a file. Name another folder": ["here"],
    "new-answers is a file": ["new"],
    "cannot write here/in: Not a directory. Name a new folder": ["here/in"],
    "cannot write loop": ["loop"],  # a link to itself
    "Name a new folder where you may write": ["x" * 300],
    "full is not empty: remove it": ["full"],
    "may be inside the other; got a for students and a for the answers": ["a", "--answers", "a"],
    "may be inside the other; got b for students and b/c": ["b", "--answers", "b/c"],
    "may be inside the other; got c/d for students and c": ["c/d", "--answers", "c"],
    "may be inside the other; got . for students and e": [".", "--answers", "e"],
    "outside of {root}/docs, which is copied into the handout": ["{root}/docs/mine"],
    "tutorial 99 has no exercise; these tutorials have exercises: 0": ["new2", "--tutorials", "99"],
    "such as 07; got the exercise 07a": ["new2", "--tutorials", "07a"],
    "want a tutorial or an exercise, such as 07": ["new2", "--tutorials", "ring"],
}


def test_of_files_that_cannot_be_written_one_is_named(tmp_path):
    """Red before: on a full disk all files were listed, in 200 kB of text."""
    ran = _run(tmp_path, "ulimit -f 8; minidl handout new")  # no file over 8 blocks
    assert ran.returncode == 2 and len(ran.stderr) < 500
    assert re.fullmatch(r"minidl handout: cannot write new/\S+: .*File too large.*\. Name a new "
                        r"folder where you may write, on a disk with 30 MB of room\n", ran.stderr)


@pytest.mark.parametrize("words", WRONG_USES)
def test_a_wrong_use_is_refused_in_a_sentence_and_nothing_is_written(
        words, tmp_path, monkeypatch, capsys):
    arguments = [a.format(root=exercise.ROOT) for a in WRONG_USES[words]]
    if arguments[0] == ".":
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
    else:
        monkeypatch.chdir(tmp_path)
        for name in "here", "new-answers", "full/mine":
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("")
        (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    try:
        status = main(["handout", *arguments])
    except SystemExit as end:
        status = end.code
    said = " ".join(capsys.readouterr().err.split())
    assert status == 2 and words.format(root=exercise.ROOT) in said and "Traceback" not in said
    assert sorted(tmp_path.rglob("*")) == before
    assert not (exercise.ROOT / "docs" / "mine").exists()


def test_a_tutorial_that_is_named_twice_is_there_once(tmp_path, capsys):
    handout.handout(tmp_path / "new", ["07", "07"])
    assert "with the tutorials 07. Wrote" in capsys.readouterr().out
    assert "\ntutorials = 07\n" in (tmp_path / "new" / "course.cfg").read_text()


def test_folders_that_are_not_empty_stay_as_they_are(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine").write_text("")
    with pytest.raises(exercise.ExerciseError, match="is not empty"):
        handout.handout(tmp_path / "here")
    with pytest.raises(exercise.ExerciseError, match="tutorial 99 has no exercise"):
        handout.handout(tmp_path / "new", ["99"])
    assert not (tmp_path / "new").exists()
    with pytest.raises(exercise.ExerciseError, match="no file .*`minidl handout` writes the"):
        grade.grader("08", answers=tmp_path)
