"""Tests which cases `make test` runs if a test has many: every value, but not every combination."""

from types import SimpleNamespace

import pytest

from tests.conftest import products


def cases(name, **values):
    """Returns the cases that pytest makes if the test has one parametrize mark for each keyword."""
    marks = [SimpleNamespace(args=(names.replace("_", ","), [])) for names in values]
    rows = [{}]
    for names, each in values.items():
        rows = [row | {n: value for n in names.split("_")} for row in rows for value in each]
    return [Case(name, row, marks) for row in rows]


class Case:
    path = "tests/test_x.py"

    def __init__(self, name, row, marks):
        self.originalname, self.callspec = name, SimpleNamespace(params=row)
        self.iter_markers = lambda _: marks


@pytest.mark.parametrize("name", ["test_a", "test_b", "test_c", "test_d"])
def test_every_value_stays_in_as_few_cases_as_its_longest_list_has(name):
    all_of = cases(name, a=["p", "q", "r", "s", "t"], b_c=[1.5, 2.5], d=[True, False, None])
    left_out = products(all_of)
    stays = [case.callspec.params for case in all_of if case not in left_out]
    assert len(all_of) == 30 and len(stays) == 5
    for key, values in {"a": "pqrst", "b": [1.5, 2.5], "d": [True, False, None]}.items():
        assert {row[key] for row in stays} == set(values)


def test_one_list_stays_whole_and_so_do_tests_without():
    plain = SimpleNamespace(path="tests/test_x.py", originalname="test_plain")
    assert not products([plain, *cases("test_a", a=range(20))])
    assert len(products(cases("test_a", a=range(20), b="xy"))) == 20
