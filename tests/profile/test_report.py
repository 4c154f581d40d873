"""The text has every part, and its rows add up."""

import re

import numpy as np
import pytest

import minidl
from minidl.profile import report, summary
from tests.profile.test_record import batch, model_and_step

PEAK = {"float32": 1e11, "float64": 5e10, "bandwidth": 1e10, "threads": 2}


@pytest.fixture(scope="module")
def figures():
    _, step = model_and_step()
    with minidl.profile(memory=True) as p:
        for _ in range(4):
            step(*batch(64))
            x = minidl.tensor(np.ones((64, 64)), requires_grad=True)
            (x @ x).sum().backward()
    return summary.of(p.ranks, PEAK)


def test_the_report_has_every_part(figures):
    text = report.text(figures)
    for part in ("a step, the mean of 3 on 1 rank", "the slowest", "matmul forward float64",
                 "linear backward", "x roofline", "module", "memory at the peak", "parameters"):
        assert part in text, text
    assert len(text.split("\n\n")[-1].splitlines()) == 3  # sentences


def test_the_printed_rows_add_up_to_the_printed_step(figures):
    block = report.text(figures).split("\n\n")[0].splitlines()[2:]
    ms = [float(re.search(r" ([\d.]+) +[\d.]+%", line)[1]) for line in block]
    assert sum(ms[:-1]) == pytest.approx(ms[-1], abs=0.005 * len(ms))
    assert block[-1].startswith("step")


def test_a_roofline_is_the_longer_of_two_times(figures):
    op = next(op for op in figures["operators"] if op["name"] == "matmul" and
              op["phase"] == "forward")
    assert op["flops"] == 2 * 64**3 and op["bytes"] == 3 * 64 * 64 * 8
    assert op["roof_s"] == pytest.approx(max(2 * 64**3 / 5e10, 3 * 64 * 64 * 8 / 1e10))


def test_without_peaks_the_report_says_how_to_get_them(figures):
    text = report.text(figures | {"peak": {}})
    assert "no roofline yet: `minidl doctor --peaks`" in text
