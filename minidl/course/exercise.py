'''Exercises are regions of the tutorials: write them blank, show the solution.

    # >>> exercise 07a: reduce-scatter          (`//` instead of `#` in a .cu file)
    # What to do, in a comment: it stays in the blank.
    for s in range(p - 1):                      The solution; the blank raises an error instead.
    # <<<

    minidl exercise 07    tutorials/07_ring.py with its regions blanked  ->  work/07_ring.py
    minidl check 07       grades work/07_ring.py: grade.py
    minidl solution 07    the difference between work/07_ring.py and tutorials/07_ring.py

07a means this exercise alone: `minidl exercise 07a --force` blanks it and keeps the others.

So an exercise is written once, in the tutorial that runs.     Test: tests/course/test_exercise.py
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

# A region is lines[start:stop]; `start` counts from 0, so it is also the line number of its mark.
Region = namedtuple("Region", "id title start stop")


class ExerciseError(Exception):
    """The command cannot do that; the message says why and what to do."""


def regions(text, name="the file"):
    """The exercises in `text`, in order."""
    found, opened = [], None
    if ">>> exercise" not in text and "<<<" not in text:
        return found  # most kernels: no line is looked at
    for i, line in enumerate(text.splitlines()):
        start = _START.match(line)
        if start and opened:
            raise ExerciseError(
                f"{name}:{i + 1}: exercise {start[1]} begins inside exercise {opened[0]}")
        if start:
            opened = (start[1], start[2], i + 1)
        elif _STOP.match(line):
            if not opened:
                raise ExerciseError(f"{name}:{i + 1}: '<<<' closes no exercise")
            found.append(Region(*opened, i))
            opened = None
    if opened:
        raise ExerciseError(
            f"{name}:{opened[2]}: exercise {opened[0]} has no '<<<' line that ends it")
    return found


def body(text, region):
    """The lines of a region, as one string."""
    return "".join(text.splitlines(keepends=True)[region.start : region.stop])


def fill(text, answers):
    """`text` with the regions in `answers`, {id: code}, replaced; code is indented to fit."""
    lines = text.splitlines(keepends=True)
    for region in reversed(regions(text)):
        if region.id in answers:
            mark = lines[region.start - 1]
            indent = mark[: len(mark) - len(mark.lstrip())]
            code = answers[region.id].strip("\n").splitlines()
            lines[region.start : region.stop] = [(indent + line).rstrip() + "\n" for line in code]
    return "".join(lines)


def blank(text, stops=True):
    """`text` with every region emptied: its opening comment, then an error until it is written."""
    return fill(text, {region.id: _blank_body(text, region, stops) for region in regions(text)})


def _blank_body(text, region, stops=True):
    """The task, then an error that says what is missing. stops=False: a kernel's without it, so
    that the other kernels of its file compile. What is blank, in any language, stays."""
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
    """The comment that a region begins with: (its lines, their mark)."""
    mark = text.splitlines()[region.start - 1].strip()[:2].strip()  # "#" or "//"
    return list(itertools.takewhile(lambda line: line.strip().startswith(mark),
                                    body(text, region).splitlines())), mark


def tutorials(root=ROOT):
    """{number: files with its exercises}: the tutorial, then any kernels."""
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
    """The files with exercises of this number."""
    known = tutorials(root)
    if number not in known:
        raise ExerciseError(f"tutorial {number} has no exercise; these have: {', '.join(known)}")
    return known[number]


def read(path):
    return Path(path).read_text(encoding="utf-8")


# -- the commands; each returns the exit status


def write(number, force=False, root=ROOT, work=WORK):
    """`minidl exercise NN` or `NNa`: write the blank files; over a student's work only with
    `force`, and for one exercise over that one only. Without a number: list the exercises."""
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
            raise ExerciseError(f"{path} has been edited; nothing was written. To start again and "
                                f"lose it: minidl exercise {number} --force")
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
    print(tr(f"Write what is missing between '>>>' and '<<<', then: minidl check {number}"))
    return 0


def _named(number, root):
    """The exercises that "07" or "07a" means."""
    ids = [r.id for source in sources(number[:2], root) for r in regions(read(source))]
    found = [name for name in ids if name.startswith(number)]
    if not found:
        raise ExerciseError(f"there is no exercise {number}; tutorial {number[:2]} has "
                            f"{', '.join(ids)}")
    return found


def _replace(path, text):
    """Write the file, whole or not at all."""
    unfinished = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise ExerciseError(f"cannot write {path} in {os.getcwd()}: {error.strerror}. Make room, "
                            "or go to a folder where you may write") from None


def listing(root=ROOT):
    """`minidl exercise`: list the exercises."""
    for files in tutorials(root).values():
        for source in files:
            for region in regions(read(source)):
                print(f"{region.id}  {padded(tr(region.title), 54)} {source.relative_to(root)}")
    return 0


def solution(number, root=ROOT, work=WORK):
    """`minidl solution NN` or `NNa`: from the student's file to the tutorial, as a diff."""
    renamed.bring_up_to_date(work)
    _named(number, root)
    same = True
    for source in sources(number[:2], root):
        path = existing(work / source.name, number)
        theirs, ours = read(path), read(source)
        if ours == blank(ours, source.suffix == ".py"):
            raise ExerciseError(f"the solutions are not in this course's handout: {source} is "
                                "blank, too. Ask whoever gave it to you")
        if theirs[:200] != ours[:200]:  # the student's file has its texts in another language
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
    """`path`, a student's file. Raises ExerciseError if it does not exist."""
    if not path.exists():
        raise ExerciseError(f"{path} does not exist; write it first: minidl exercise {number}")
    return path
