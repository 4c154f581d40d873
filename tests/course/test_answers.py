"""Answers to the exercises that were written by somebody who had not read the graders: of each
exercise in Python a wrong one and a right one here, all of them by `make answers`."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from minidl.course import exercise
from tests.conftest import some
from tests.course import examine_answers


def test_every_exercise_has_six_wrong_and_three_right_answers():
    counts = Counter((name, kind) for name, kind, *_ in examine_answers.cases())
    names = {r.id for number in exercise.tutorials() for source in exercise.sources(number)
             for r in exercise.regions(exercise.read(source))}
    assert {name for name, _ in counts} == names
    for name in names:
        assert [counts[name, kind] for kind in ("wrong", "right", "solution")] == [6, 3, 1], name


def test_every_wrong_answer_has_words_that_name_its_cause():
    wrong = {answer for _, kind, answer, _ in examine_answers.cases() if kind == "wrong"}
    assert set(examine_answers.hints()) == wrong
    assert all(len(words) > 8 for words in examine_answers.hints().values()), "no common word"


@pytest.mark.slow
def test_wrong_answers_are_refused_with_their_cause_and_right_ones_accepted():
    environment = os.environ | {"PYTHONPATH": str(exercise.ROOT), "OPENBLAS_NUM_THREADS": "1"}
    python = {name for name, *_ in examine_answers.cases(short=True)}
    names = some(sorted(python), of=3)
    ran = subprocess.run([sys.executable, Path(examine_answers.__file__), "--short", *names],
                         env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    *_, total = re.findall("all .*", ran.stdout)
    n = len(names)
    assert n >= 12 and total.split() == f"all {n} of {n} {n} of {n} - {min(n, 13)} of ".split() + [
        str(min(n, 13))]
