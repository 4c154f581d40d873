'''Writes a course for students: `minidl handout DIR` makes a repository without solutions.

    DIR/                      for the students: each student gets a copy (a GitHub template)
      minidl/ docs/           the framework, to read; without tests, without questions and answers
      tutorials/ kernels/     in these files every exercise is blank
      tutorials/graders/      graders without wrong answers and without their `reference` regions
      work/                   the exercises of the course, blank: students write and hand in these
      course.cfg              the tutorials of the course, and the points of each exercise
      .github/workflows/      GitHub Classroom grades every push, with a step for each exercise
    DIR-answers/              for the teachers only
      tutorials/ kernels/     the solutions
      graders/                the whole graders: `minidl check --answers DIR-answers`
      questions/ outlines/    the question bank, and a page for each lesson
      sheets.py               draws sheets to fill in by hand, also with solutions
      autograder/             for Gradescope: setup.sh, run_autograder; autograder.zip

Without the answers, a check looks at properties and counters. With the answers it also compares
the student's results with reference results (grade.py). The framework itself contains every
technique, and students may read it. The graders count calls, so they notice if a student's answer
only calls the library's own function.

Source: Gradescope, "Autograder specifications"; GitHub Classroom's autograding actions
Test: tests/course/test_handout.py   Course: docs/course/kit.md
'''

import ast
import os
import re
import shutil
from pathlib import Path

from minidl.course import exercise, grade
from minidl.course.comments import in_language
from minidl.course.exercise import ROOT, ExerciseError
from minidl.text import language, tr

WHOLE = "minidl", "kernels", "docs", "setup.cfg", "pyproject.toml", "Makefile", "LICENSE"
PRIVATE = Path("docs", "course", "questions")  # a handout does not contain this folder
FOR_TEACHERS = PRIVATE, Path("docs", "course", "outlines"), Path("docs", "course", "sheets.py")
_SKIP = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")


def handout(folder, tutorials=(), answers=None, personal=False, root=ROOT):
    """Writes the handout into `folder`, and the teachers' files into `answers`. Returns 0.

    tutorials: the numbers of the graded tutorials. The default is all tutorials. personal: if True,
    every student has different inputs, drawn from the name that GitHub or Gradescope gives. Raises
    ExerciseError if the handout cannot be written."""
    folder, answers = Path(folder), Path(answers or f"{folder}-answers")
    known = exercise.tutorials(root)
    for number in tutorials:
        if number not in known and number[:2] in known:
            raise ExerciseError(f"want the numbers of tutorials, such as {number[:2]}; got the "
                                f"exercise {number}. Name the whole "
                                "tutorial. An exercise can get 0 points in the handout's "
                                "course.cfg")
        exercise.sources(number, root)  # raises ExerciseError if there is no such tutorial
    numbers = list(dict.fromkeys(tutorials)) or list(known)
    try:
        _new_folders(folder, answers, root)
        _students(folder, numbers, personal, root)
        _course(answers, root)
        _autograder(answers / "autograder", folder, answers, personal)
    except OSError as error:
        path, why = error.filename or folder, error.strerror or error
        if isinstance(error, shutil.Error):  # has a list of files, each as (source, path, why)
            _, path, why = error.args[0][0]
        raise ExerciseError(f"cannot write {path}: {why}. Name a new folder where you may write, "
                            "on a disk with 30 MB of room") from None
    print(tr(f"wrote {folder} for students, with the tutorials {' '.join(numbers)}. Wrote "
             f"{answers} for teachers only, with the solutions, the whole graders and "
             "autograder.zip"))
    return 0


def _new_folders(folder, answers, root):
    """Raises ExerciseError unless `folder` and `answers` are new or empty folders. Neither folder
    may be inside the other folder, or inside a folder that is copied into the handout."""
    for one in folder, answers:
        if one.exists() and not one.is_dir():
            raise ExerciseError(f"want a new folder; {one} is a file. Name another folder")
        if one.exists() and any(one.iterdir()):
            raise ExerciseError(f"{one} is not empty: remove it, or name another folder")
        copied = [root / name for name in (*WHOLE, "tutorials") if (root / name).is_dir()]
        inside = [source for source in copied if _real(one).is_relative_to(_real(source))]
        if inside:
            raise ExerciseError(f"want a folder outside of {inside[0]}, which is copied into the "
                                f"handout; got {one}. Name another folder")
    first, second = _real(folder), _real(answers)
    if first.is_relative_to(second) or second.is_relative_to(first):
        raise ExerciseError(f"neither of the two folders may be inside the other; got {folder} for "
                            f"students and {answers} for the answers. Students must not find the "
                            "answers: name another folder for the answers, --answers DIR")


def _real(path):
    return Path(os.path.realpath(path))  # Path.resolve raises an error for a loop of links


# -- the students' folder


def _students(folder, numbers, personal, root):
    for name in WHOLE:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=_SKIP)
        elif (root / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder)
    for path in FOR_TEACHERS:
        if (folder / path).is_dir():
            shutil.rmtree(folder / path)
        else:
            (folder / path).unlink(missing_ok=True)
    for file in (folder / "kernels").glob("*.cu"):
        _write(file, in_language(exercise.blank(exercise.read(file), stops=False)))
    for file in [*(root / "tutorials").glob("[0-9][0-9]_*.py"), root / "tutorials/train_gpt.py"]:
        if file.exists():
            text = exercise.blank(exercise.read(file))
            _write(folder / "tutorials" / file.name, in_language(text))
    for file in (root / "tutorials" / "graders").glob("*.py"):
        _write(folder / "tutorials" / "graders" / file.name, public(exercise.read(file)))
    names = []
    for number in numbers:
        for source in exercise.sources(number, root):
            text = in_language(exercise.blank(exercise.read(source)))
            _write(folder / "work" / source.name, text)
            names += [r.id for r in exercise.regions(text)]
    names.sort()
    points = "".join(f"{name} = {grade.POINTS:g}\n" for name in names)
    _write(folder / "course.cfg", tr(CONFIG).format(tutorials=" ".join(numbers), points=points))
    _write(folder / ".gitignore", IGNORED)
    _write(folder / ".github" / "workflows" / "classroom.yml", workflow(names, personal))
    student = " --student YOUR-NAME" if personal else ""
    readme = root / ("README.zh.md" if language() == "zh" else "README.md")
    _write(folder / "README.md", tr(STUDENTS).format(first=numbers[0], student=student)
           + (exercise.read(readme) if readme.exists() else ""))
    for page in [folder / "README.md", *folder.glob("docs/**/*.md"), *folder.glob("kernels/*.md")]:
        _write(page, _without_dead_links(exercise.read(page), page.parent))


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _without_dead_links(text, folder):
    """Returns the Markdown page `text` without links to files that the handout does not have. The
    words of such a link stay. folder: the folder of the page."""
    def link(found):
        alive = "://" in found[2] or (folder / found[2].split("#")[0]).exists()
        return found[0] if alive else found[1]

    return re.sub(r"(?<!!)\[([^]\n]*(?:\n[^]\n]*)?)\]\(([^)#\s]+[^)\s]*)\)", link, text)


def public(text):
    """Returns a grader's file without its wrong answers, and without the code that only the wrong
    answers need.

    Each function in a region `# >>> reference` is replaced by a function that raises Hidden. This
    error ends the check."""
    lines, hidden, inside = text.splitlines(keepends=True), [], False
    for i, line in enumerate(lines):
        start, stop = line.startswith("# >>> reference"), line.startswith("# <<<")
        inside = inside or start
        if inside and (name := re.match(r"(?:def )?(\w+)(?:\(| = )", line)):
            hidden.append(name[1])
        if inside:
            lines[i] = ""
        inside = inside and not stop
    stubs = "".join(f"\n\ndef {name}(*_):\n    raise Hidden\n" for name in hidden)
    return _needed("".join(lines).rstrip("\n") + "\n" + stubs, bool(hidden))


def _needed(text, hides):
    """Returns a grader's file with only the parts that grading needs. Statements that are not
    definitions stay. The functions grade_* and personal stay, too. Every definition that one of
    these parts uses also stays. hides: if True, functions of the file raise Hidden, so the result
    also imports Hidden."""
    tree, lines = ast.parse(text), text.splitlines(keepends=True)

    def names(node, context):
        own = {node.name} if context is ast.Store and hasattr(node, "name") else set()
        return own | {n.id for n in ast.walk(node)
                      if isinstance(n, ast.Name) and isinstance(n.ctx, context)}

    kept = [n for n in tree.body if not isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.Assign))
            or getattr(n, "name", "").startswith(("grade_", "personal"))]
    defined = [(node, names(node, ast.Store)) for node in tree.body]
    for node in kept:  # the list grows in the loop
        wanted = names(node, ast.Load) | {"SEED"}
        kept += [n for n, its_names in defined if n not in kept and its_names & wanted]
    end = 0
    for node in tree.body:
        if node not in kept:  # the comment above the node is removed, too
            lines[end : node.end_lineno] = [""] * (node.end_lineno - end)
        end = node.end_lineno
    if hides and "import Hidden" not in text:
        first = next(n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)))
        lines[first.lineno - 1] = ("from minidl.course.student import Hidden\n"
                                   + lines[first.lineno - 1])
    return "".join(lines).rstrip("\n") + "\n"


def workflow(names, personal):
    """Returns the workflow for GitHub Classroom, a YAML text. It has a step for each exercise in
    `names`, and then a step that adds up the points."""
    student = ' --student "$GITHUB_ACTOR"' if personal else ""
    steps = "".join(STEP.format(name=name, student=student, points=f"{grade.POINTS:g}")
                    for name in names)
    outcomes = "".join(OUTCOME.format(name=name, upper=name.upper()) for name in names)
    return WORKFLOW.format(steps=steps, outcomes=outcomes, student=student,
                           names=",".join(f"ex{name}" for name in names))


# -- the course's folder


def _course(answers, root):
    shutil.copytree(root / "tutorials", answers / "tutorials",
                    ignore=shutil.ignore_patterns("__pycache__", "graders"))
    shutil.copytree(root / "tutorials" / "graders", answers / "graders", ignore=_SKIP)
    for file in (root / "kernels").glob("*.cu"):
        if exercise.regions(exercise.read(file)):
            _write(answers / "kernels" / file.name, exercise.read(file))
    for path in FOR_TEACHERS:
        if (root / path).is_dir():
            shutil.copytree(root / path, answers / path.name, ignore=_SKIP)
        elif (root / path).exists():
            shutil.copy(root / path, answers)


def _autograder(folder, handed, answers, personal):
    """Writes the folder and the zip for Gradescope. Gradescope unpacks the zip into
    /autograder/source, and calls setup.sh and run_autograder."""
    shutil.copytree(handed, folder / "course", ignore=shutil.ignore_patterns("docs", "work"))
    shutil.copytree(answers / "graders", folder / "answers" / "graders")
    _write(folder / "setup.sh", SETUP)
    _write(folder / "run_autograder", AUTOGRADER.replace("@STUDENT@", NAME_GIVEN * personal))
    for name in "setup.sh", "run_autograder":
        (folder / name).chmod(0o755)
    shutil.make_archive(str(folder), "zip", folder)


CONFIG = """# The exercises of this course: `minidl check` without a number grades them all.
[course]
tutorials = {tutorials}

# for each exercise: all points or none
[points]
{points}"""

IGNORED = """.venv/
*.egg-info/
build/
out/
__pycache__/
# the teachers' files, if they are next to a handout
answers/
"""

STUDENTS = """# Exercises

```
python3 -m venv .venv && .venv/bin/pip install -e '.[mpi,tutorials]'
. .venv/bin/activate
minidl doctor                  # is everything there?
minidl check {first}{student}                # grade work/{first}_*.py; without a number: all files
minidl progress                # show which exercises are done, and your points
git add work && git commit -m "My answers" && git push        # hand in
```

Write your answers into the files of `work/`, between `>>>` and `<<<`. The head of each file
explains its topic. `minidl exercise {first} --force` makes the file of tutorial {first} blank
again. The scripts in `tutorials/` are blank, too. So run your own scripts, for example
`minidl run -n 4 work/07_ring.py`. The text below is about the framework. Its tests, benchmarks and
solutions are not in this repository.

"""

WORKFLOW = """name: Autograding
on: [push, repository_dispatch]
permissions:
  checks: write
  actions: read
  contents: read
jobs:
  grade:
    runs-on: ubuntu-latest
    if: github.actor != 'github-classroom[bot]'
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: install
        run: pip install --quiet -e '.[tutorials]'
{steps}      - name: all of it, as JUnit XML
        if: always()
        run: minidl check{student} --junit results.xml || true
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: results
          path: results.xml
      - name: points
        if: always()
        uses: classroom-resources/autograding-grading-reporter@v1
        env:
{outcomes}        with:
          runners: {names}
"""

STEP = """      - name: exercise {name}
        id: ex{name}
        uses: classroom-resources/autograding-command-grader@v1
        with:
          test-name: exercise {name}
          command: minidl check {name}{student}
          timeout: 5
          max-score: {points}
"""

OUTCOME = """          EX{upper}_RESULTS: "${{{{steps.ex{name}.outputs.result}}}}"
"""

SETUP = """#!/usr/bin/env bash
# Gradescope runs this file once, when it builds the image of the autograder.
set -e
apt-get update && apt-get install -y python3-pip python3-venv g++
python3 -m venv /autograder/venv
/autograder/venv/bin/pip install -e '/autograder/source/course[tutorials]'
"""

AUTOGRADER = """#!/usr/bin/env bash
# Gradescope runs this file for every submission. It reads submission/ and writes
# results/results.json. To try it in another folder than /autograder:
#     AUTOGRADER=folder ./run_autograder
base=$(cd "${AUTOGRADER:-/autograder}" && pwd)
[ -d "$base/venv" ] && PATH="$base/venv/bin:$PATH"
work=$base/submission
[ -d "$work/work" ] && work=$work/work       # a repository, or only its files
cd "$base/source/course" || exit 1
@STUDENT@python3 -m minidl check --work "$work" --answers "$base/source/answers" \\
    --gradescope "$base/results/results.json" ${name:+--student "$name"}
[ -s "$base/results/results.json" ]          # exit status 0 if there are results, also if no points
"""

NAME_GIVEN = """name=$(python3 -c 'import json, sys
print(json.load(open(sys.argv[1]))["users"][0]["name"])' "$base/submission_metadata.json")
"""
