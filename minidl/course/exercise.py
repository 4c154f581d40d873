'''Exercises are regions of the tutorials. This file blanks the regions, and shows the solutions.

    # >>> exercise 07a: reduce-scatter          (`//` instead of `#` in a .cu file)
    # What to do, in a comment: it stays in the blank file.
    for s in range(p - 1):                      The solution. In the blank file, a line that causes
                                                an error replaces it.
    # <<<

    minidl exercise 07    tutorials/07_ring.py with its regions blanked  ->  work/07_ring.py
    minidl check 07       grades work/07_ring.py: grade.py
    minidl solution 07    shows the difference between work/07_ring.py and tutorials/07_ring.py

07a means only this exercise: `minidl exercise 07a --force` blanks 07a and keeps the others.

An exercise and its solution are in one place only: in the tutorial, which is a script that runs.

Test: tests/course/test_exercise.py
'''

import difflib
import itertools
import os
import re
import sys
import textwrap
from collections import namedtuple
from pathlib import Path

from minidl.checkout import ROOT
from minidl.course import renamed
from minidl.course.comments import in_language
from minidl.text import padded, tr

WORK = Path("work")
UNWRITTEN = "is not written yet"

_START = re.compile(r"^\s*(?:#|//) >>> exercise (\d\d[a-z]): (.+?)\s*$")
BLANK = re.compile(r"\s*(raise NotImplementedError\(|#error )")
_STOP = re.compile(r"^\s*(?:#|//) <<<\s*$")

# A region is lines[start:stop] of its file, without the two marks. The mark above the region is
# lines[start - 1]. If the first line of a file has the number 1, this mark has the number `start`.
Region = namedtuple("Region", "id title start stop")


class ExerciseError(Exception):
    """Raised if a command cannot be done. The message says why, and what to do."""


def regions(text, name="the file"):
    """Returns the exercises in `text`, in order. Raises ExerciseError if the marks do not match."""
    found, opened = [], None
    if ">>>" not in text and "<<<" not in text:
        return found  # saves time: most files have no mark
    for i, line in enumerate(text.splitlines()):
        if ">>>" not in line and "<<<" not in line:
            continue  # saves time: nearly all lines have no mark
        start = _START.match(line)
        if start and opened:
            raise ExerciseError(
                f"{name}:{i + 1}: exercise {start[1]} begins inside exercise {opened[0]}. "
                f"End exercise {opened[0]} first, by a line with '<<<'")
        if start:
            opened = (start[1], start[2], i + 1)
        elif _STOP.match(line):
            if not opened:
                raise ExerciseError(f"{name}:{i + 1}: '<<<' ends an exercise, but none has begun. "
                                    "Remove this line, or write the '>>>' line of the exercise")
            found.append(Region(*opened, i))
            opened = None
    if opened:
        raise ExerciseError(
            f"{name}:{opened[2]}: exercise {opened[0]} has no '<<<' line that ends it. "
            "Add this line below its code")
    return found


def body(text, region):
    """Returns the lines of a region, as one string."""
    return "".join(text.splitlines(keepends=True)[region.start : region.stop])


def fill(text, answers):
    """Returns `text` with the code of `answers` in its regions. The code gets the indentation of
    the marks. answers: {id of an exercise: its code}."""
    lines = text.splitlines(keepends=True)
    for region in reversed(regions(text)):
        if region.id in answers:
            mark = lines[region.start - 1]
            indent = mark[: len(mark) - len(mark.lstrip())]
            code = answers[region.id].strip("\n").splitlines()
            lines[region.start : region.stop] = [(indent + line).rstrip() + "\n" for line in code]
    return "".join(lines)


def blank(text, stops=True):
    """Returns `text` with every region blank. A blank region has its first comment, and then a line
    that causes an error. stops: if False, the regions of kernels have no such line."""
    return fill(text, {region.id: _blank_body(text, region, stops) for region in regions(text)})


def _blank_body(text, region, stops=True):
    """Returns the task, and then a line that causes an error. The error names the exercise.

    stops: if False, the region of a kernel has no such line, so that the other kernels of the file
    still compile. A region that is already blank, in any language, does not change."""
    lines, (comment, mark) = body(text, region).splitlines(), task(text, region)
    if lines[len(comment) :] and BLANK.match(lines[len(comment)]):
        return textwrap.dedent(body(text, region))
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    lines = [line[indent:] for line in comment]
    message = f"exercise {region.id} ({region.title}) {UNWRITTEN}"
    if mark == "#":
        lines.append(f'raise NotImplementedError("{message}")')
    elif stops:
        lines.append(f'#error "{message}"')
    return "\n".join(lines)


def task(text, region):
    """Returns (lines, mark): the lines of the comment at the beginning of a region, and the mark of
    the comment, "#" or "//"."""
    mark = text.splitlines()[region.start - 1].strip()[:2].strip()  # "#" or "//"
    return list(itertools.takewhile(lambda line: line.strip().startswith(mark),
                                    body(text, region).splitlines())), mark


def tutorials(root=ROOT):
    """Returns {number of a tutorial: the files with its exercises}. The first file is the tutorial
    itself. Then come the kernels (.cu files) that have exercises with this number, if there are
    any."""
    folder = root / "tutorials"
    if not folder.is_dir():
        raise ExerciseError(f"there is no folder {folder}: exercises need a clone of the "
                            "repository, installed with pip install -e")
    kernels = {k: {r.id[:2] for r in regions(read(k), k)}
               for k in sorted((root / "kernels").glob("*.cu"))}
    found = {}
    for path in sorted(folder.glob("[0-9][0-9]_*.py")):
        number = path.name[:2]
        also = [k for k, numbers in kernels.items() if number in numbers]
        if also or regions(read(path), path):
            found[number] = [path, *also]
    return found


def sources(number, root=ROOT):
    """Returns the files with exercises of this number. Raises ExerciseError if there are none."""
    known = tutorials(root)
    if number not in known:
        raise ExerciseError(f"tutorial {number} has no exercise; these tutorials have exercises: "
                            f"{', '.join(known)}")
    return known[number]


def read(path):
    return Path(path).read_text(encoding="utf-8")


# -- the commands: each function returns an exit status


def write(number, force=False, root=ROOT, work=WORK):
    """`minidl exercise NN` or `NNa`: writes the blank files.

    Overwrites a student's file only with `force`. For NNa, overwrites only this exercise, and keeps
    the rest of the file. If `number` is None, lists the exercises."""
    if number is None:
        return listing(root)
    renamed.bring_up_to_date(work)
    found = _named(number, root)
    texts = {}
    for source in sources(number[:2], root):
        path, english = work / source.name, blank(read(source))
        blanks = english, in_language(english)
        text = blanks[1]
        if path.exists() and read(path) not in blanks and not force:
            raise ExerciseError(f"{path} has been edited, so nothing was written. To start again, "
                                f"and lose your changes: minidl exercise {number} --force")
        if path.exists() and len(number) > 2:
            mine = read(path)
            text = fill(mine, {r.id: body(text, r) for r in regions(text) if r.id == number})
        texts[work / source.name] = text
    for path, text in texts.items():
        _replace(path, text)
        print(tr(f"wrote {path}"))
        for region in regions(text):
            if region.id in found:
                print(tr(f"  exercise {region.id}, line {region.start}: {region.title}"))
    print(tr(f"Write what is missing between '>>>' and '<<<', then run: minidl check {number}"))
    return 0


def _named(number, root):
    """Returns the names of the exercises that "07" or "07a" means, such as ["07a"]. Raises
    ExerciseError if there are none."""
    ids = [r.id for source in sources(number[:2], root) for r in regions(read(source))]
    found = [name for name in ids if name.startswith(number)]
    if not found:
        raise ExerciseError(f"there is no exercise {number}; tutorial {number[:2]} has the "
                            f"exercises {', '.join(ids)}")
    return found


def _replace(path, text):
    """Writes a file. If the writing fails, the old file is not changed."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise ExerciseError(f"cannot write {path} in {os.getcwd()}: {error.strerror}. Make room "
                            "on the disk, or go to a folder where you may write") from None


def listing(root=ROOT):
    """`minidl exercise`: lists the exercises."""
    for files in tutorials(root).values():
        for source in files:
            for region in regions(read(source)):
                print(f"{region.id}  {padded(tr(region.title), 54)} {source.relative_to(root)}")
    return 0


def solution(number, root=ROOT, work=WORK):
    """`minidl solution NN` or `NNa`: prints the difference between the student's file and the
    tutorial."""
    renamed.bring_up_to_date(work)
    _named(number, root)
    same = True
    for source in sources(number[:2], root):
        path = existing(work / source.name, number)
        theirs, ours = read(path), read(source)
        if ours == blank(ours, source.suffix == ".py"):
            raise ExerciseError(f"the solutions are not in this course's handout: {source} is "
                                "blank, too. Ask your teacher")
        if theirs[:200] != ours[:200]:  # the texts of the student's file are in another language
            ours = in_language(ours)
        if len(number) > 2:
            theirs, ours = ("".join(body(text, r) for r in regions(text) if r.id == number)
                            for text in (theirs, ours))
        sys.stdout.writelines(difflib.unified_diff(theirs.splitlines(True), ours.splitlines(True),
                                                   str(path), str(source.relative_to(root))))
        same = same and theirs == ours
    if same:
        print(tr("No difference."))
    return 0


def existing(path, number):
    """Returns `path`, a student's file. Raises ExerciseError if it does not exist."""
    if not path.exists():
        raise ExerciseError(f"{path} does not exist. Make this file first: minidl exercise "
                            f"{number}")
    return path
