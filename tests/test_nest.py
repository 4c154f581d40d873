"""Tests that nested tuples, lists and dicts keep their form."""

from collections import OrderedDict, namedtuple

import pytest

from minidl.nest import each, leaves

Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("nest, doubled", [
    (3, 6), ((1, 2), (2, 4)), ([1, [2]], [2, [4]]), ({"a": 1, "b": (2,)}, {"a": 2, "b": (4,)}),
    (Pair(1, [2]), Pair(2, [4])), (OrderedDict(b=1, a=2), OrderedDict(b=2, a=4)), ((), ())])
def test_each_leaf_changes_and_the_form_stays(nest, doubled):
    made = each(lambda x: 2 * x, nest)
    assert made == doubled and type(made) is type(doubled)


def test_leaves_come_in_order():
    assert leaves(({"b": 1, "a": [2, None]}, Pair("x", ()))) == [1, 2, None, "x"]
