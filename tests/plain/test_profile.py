"""The page and the real one: the same own times, operations, bytes and roofline."""

import random
import time

import numpy as np
import pytest

from minidl.plain import profile
from minidl.profile import flops
from minidl.profile.summary import nested


def tree(r, begin, end, depth=0):
    """Random spans inside of [begin, end), with names that come again."""
    ends = sorted(r.sample(range(begin, end + 1), min(4, end + 1 - begin)))
    spans = []
    for a, b in zip(ends[::2], ends[1::2]):
        spans.append((r.choice("abc"), a, b))
        if depth < 3 and b - a > 2:
            spans += tree(r, a, b, depth + 1)
    return spans


@pytest.mark.parametrize("seed", range(20))
def test_own_times_are_the_real_ones_and_add_up(seed):
    r = random.Random(seed)
    spans = [("all", 0, 1000), *tree(r, 0, 1000)]
    r.shuffle(spans)
    want = {}
    for (_, name, *_), _, own_s in nested([("forward", *one, "", None) for one in spans]):
        want[name] = want.get(name, 0) + own_s
    assert profile.own_times(spans) == want
    assert sum(want.values()) == 1000


def test_spans_of_a_clock_nest():
    spans = []
    with profile.span(spans, "outer"):
        with profile.span(spans, "inner"):
            time.sleep(0.002)
    (_, begin, end), (_, first, last) = spans
    assert [name for name, *_ in spans] == ["inner", "outer"]
    assert first <= begin < end <= last and end - begin >= 0.002


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (3, 5, 7), (64, 1, 9), (128, 128, 128)])
def test_work_and_roofline_are_the_real_formulas(m, k, n):
    detail = ([((m, k), np.dtype("f4")), ((k, n), np.dtype("f4"))], (m, n), (True, True), False)
    operations, n_bytes = profile.matmul_work(m, k, n)
    assert operations == flops.operations("matmul", "forward", detail)
    assert n_bytes == flops.n_bytes("forward", detail)
    seconds, limit = profile.roofline(operations, n_bytes, peak=1e3, bandwidth=250)
    assert seconds == max(operations / 1e3, n_bytes / 250)
    assert (limit == "processor") == (operations / n_bytes > 4)
