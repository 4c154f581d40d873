"""The examination's files are what they say, and its judge judges.

The examination itself takes minutes and runs by `make examination`; here only a handful of it.
"""

from collections import Counter

import pytest

from tests.cuda.examination import examine
from tests.cuda.examination.cases import KINDS, cases

CASES = {case.name: case for case in cases()}


def test_there_are_three_bugs_of_every_kind():
    counts = Counter(case.kind for case in CASES.values())
    assert {kind: counts[kind] for kind in KINDS if counts[kind] < 3} == {}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_bug_has_a_marked_line_and_a_sound_kernel_a_result(case):
    assert case.about, "the head says what the case is"
    compile(case.script, case.path, "exec")
    if case.sound:
        assert not case.lines
        assert case.script.count("same(") > 1, "the launch must compare, beside the definition"
    else:
        assert bool(case.lines) != bool(case.launch_lines), "a mark in the kernel or the launch"


@pytest.mark.parametrize("name, verdict", [
    ("divide_by_an_empty_count", "named with line"), ("double_buffer", "right")])
def test_the_examination_runs(name, verdict):
    found = examine.run(CASES[name], "check", 60)
    assert found["verdict"] == verdict, found["said"]


@pytest.mark.parametrize("status, said, asked, verdict", [
    (1, "divide_by_an_empty_count.cu:11: division by zero", "", "named with line"),
    (1, "divide_by_an_empty_count.cu:10: division by zero", "", "named, no line"),
    (1, "divide_by_an_empty_count.cu:11: out of bounds", "", "another name"),
    (1, "something else", "", "another error"),
    (0, "Errors: 0.", "", "silent"),
    (-11, "", "", "crash"),
    (139, "Segmentation fault", "", "crash"),
    (0, "divide_by_an_empty_count.cu:11: division by zero", "Ctrl-C", "hang"),
])
def test_a_report_is_judged_by_its_name_and_its_line(status, said, asked, verdict):
    assert examine.judge_bug(CASES["divide_by_an_empty_count"], status, said, asked) == verdict


@pytest.mark.parametrize("status, said, verdict", [
    (0, "EXAMINED: right", "right"),
    (0, "f.cu:3: warning: two threads write the same\nEXAMINED: right", "warned"),
    (0, "EXAMINED: wrong: got 1, want 2", "silently wrong"),
    (1, "f.cu:3: data race\nEXAMINED: right", "false error"),
    (1, "f.cu:3: memset is not supported", "refused"),
    (-6, "", "crash"),
])
def test_a_sound_kernel_is_judged_by_its_result(status, said, verdict):
    assert examine.judge_sound(CASES["double_buffer"], status, said, "") == verdict
