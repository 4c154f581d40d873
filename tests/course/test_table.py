"""The rules of a tutorial's table, its text, and its way through JSON."""

import numpy as np
import pytest

from minidl.course.table import Row, failed, holds, load, merge, render, row, save


@pytest.mark.parametrize(
    "found, theory, rule, ok",
    [
        (6, 6, "exact", True),
        (6, 6.000001, "exact", False),
        ("a", "a", "exact", True),
        (1.0000009, 1.0, "rel<1e-6", True),
        (1.0000011, 1.0, "rel<1e-6", False),
        (-2.0, -2.1, "rel<0.1", True),
        (1e-7, 0.0, "abs<1e-6", True),
        (-1e-5, 0.0, "abs<1e-6", False),
        (0.0, 0.0, "rel<1e-6", False),
        (2.0, 1.0, "factor<3", True),
        (0.3, 1.0, "factor<3", False),
        (3.1, 1.0, "factor<3", False),
        (5, 5, "<=", True),
        (5.1, 5, "<=", False),
        (float("nan"), 5, "<=", False),
        (float("nan"), 0.0, "abs<1e-6", False),
        (float("nan"), float("nan"), "exact", False),
        (5, None, "info", None),
    ],
)
def test_rules(found, theory, rule, ok):
    assert holds(found, theory, rule) is ok
    assert row("x", found, theory, rule).ok is ok
    assert row("x", None, theory, rule, modelled=found).ok is ok


@pytest.mark.parametrize("rule", ["about", "rel", "rel<", "abs<x", ""])
def test_an_unknown_rule_is_an_error_and_not_a_pass(rule):
    with pytest.raises(ValueError):
        assert holds(1.0, 1.0, rule)


def test_a_row_that_fails_on_one_rank_takes_the_place_of_rank_zeros():
    good = [row("bytes", 1, 1, "exact"), row("time", 1.0)]
    bad = [row("bytes", 2, 1, "exact"), row("extra", 1, 1, "exact")]
    rows = merge([good, bad, good])
    assert rows == [Row("bytes (on rank 1)", 2, None, 1, "exact", False), good[1], bad[1]]
    assert failed(rows) == ["bytes (on rank 1)"]


def test_the_table_is_aligned_and_names_what_failed():
    text = render(
        [
            row("bytes", 6000000, 6000000, "exact"),
            row("loss", 0.125, 0.5, "abs<1e-6"),
            row("CuPy", False),
        ]
    )
    assert text.splitlines() == [
        "quantity | measured  | theory    | rule     | ok",
        "---------+-----------+-----------+----------+----",
        "bytes    | 6,000,000 | 6,000,000 | exact    | yes",
        "loss     |     0.125 |       0.5 | abs<1e-6 | NO",
        "CuPy     |        no |           | info     | -",
        "NOT OK: loss",
    ]


def test_modelled_and_measured_never_share_a_column():
    rows = [row("time, s", 0.5), row("ring, s", modelled=2.0, theory=2.5, rule="<=")]
    assert render([r._replace(tutorial="07_ring") for r in rows]).splitlines() == [
        "tutorial | quantity | measured | modelled | theory | rule | ok",
        "---------+----------+----------+----------+--------+------+----",
        "07_ring  | time, s  |      0.5 |          |        | info | -",
        "07_ring  | ring, s  |          |        2 |    2.5 | <=   | yes",
    ]


def test_a_failed_row_of_the_joined_table_is_named_with_its_tutorial():
    rows = [row("bytes", 1, 2, "exact")._replace(tutorial="07_ring")]
    assert render(rows).splitlines()[-1] == "NOT OK: 07_ring: bytes"


def test_rows_come_back_from_json(tmp_path):
    rows = [
        row("bytes", np.int64(6), 6, "exact"),
        row("loss", np.float32(0.5), 0.25, "rel<1e-6"),
        row("clock", modelled=2.0),
        row("launches", "2 -> 1", "2 -> 1", "exact"),
        row("CuPy", np.True_),
    ]
    save(rows, tmp_path / "table.json")
    assert load(tmp_path / "table.json") == rows
