'''Tutorials that have another number now: for one release, old names go on working.

    minidl check 06_ring     an old name means the tutorial of today, and a sentence says so:
                             "06_ring is 07_ring now"; the same for a script that is run by its path
    work/06_ring.py          a student's file from before is graded as the new exercise

A number alone, 06 or 06a, is always today's: old ones cannot be told from new ones. Without its
entry in OLD_NAMES a name is nothing special, so when the release is over: empty the table, then
remove this file and its calls.

Test: tests/course/test_old_names.py
'''

import functools
import re
import sys
from pathlib import Path

from minidl.course.language import ROOT, tr

OLD_NAMES = {  # {old: new}, without .py
    "04_amp": "05_amp",
    "05_memory": "06_memory",
    "06_ring": "07_ring",
    "07_overlap": "08_overlap",
    "08_topologies": "09_topologies",
    "09_parameter_server": "10_parameter_server",
    "10_zero": "11_zero",
    "11_offload": "12_offload",
    "12_tensor_parallel": "13_tensor_parallel",
    "13_pipeline": "14_pipeline",
    "14_hybrid_3d": "15_hybrid_3d",
    "15_dgc": "16_dgc",
    "16_local_sgd": "17_local_sgd",
    "17_large_batch": "18_large_batch",
    "18_profile": "19_profile",
    "19_inference": "20_inference",
    "20_fault_tolerance": "21_fault_tolerance",
    "21_float": "04_float",
}


@functools.cache  # a command meets the name several times, and says it once
def say(old):
    print(tr(f"{old} is {OLD_NAMES[old]} now"), file=sys.stderr, flush=True)


def number(text, root=ROOT):
    """The number of the tutorial that is or was called so, "07_ring"; None: none is."""
    name = text.removesuffix(".py")
    today = OLD_NAMES.get(name, name)
    if not re.fullmatch(r"\d\d_\w+", name) or not (root / "tutorials" / f"{today}.py").is_file():
        return None
    if name in OLD_NAMES:
        say(name)
    return today[:2]


def script(text):
    """The path of a script: of the renamed one where this one is gone."""
    path = Path(text)
    if path.stem not in OLD_NAMES or path.exists():
        return text
    today = path.with_name(OLD_NAMES[path.stem] + path.suffix)
    if not today.exists():
        return text
    say(path.stem)
    return str(today)


def theirs(path):
    """A student's file: the one with the old name where that one alone is there."""
    for old, new in OLD_NAMES.items():
        other = path.with_name(old + path.suffix)
        if path.stem == new and other.exists() and not path.exists():
            say(old)
            return other
    return path


def read(path):
    """The text of a student's file, with its exercises called as today."""
    text = path.read_text(encoding="utf-8")
    if today := OLD_NAMES.get(path.stem):
        text = re.sub(rf"(exercise|练习) {path.stem[:2]}(?=[a-z])", rf"\1 {today[:2]}", text)
    return text


def before(path, exercise):
    """What `exercise` is called in the file itself, and in what was noted of it: 06a for 07a."""
    return path.stem[:2] + exercise[2:] if path.stem in OLD_NAMES else exercise


def say_what_lies_beside(path):
    """Files that had the number of the missing `path`: was one of them meant?"""
    for old in OLD_NAMES:
        if old[:2] == path.stem[:2] and path.with_name(old + path.suffix).exists():
            say(old)
