"""The double tree: its trees as published, its bytes as the formula says, segments in order.

The sum itself: test_every_all_reduce.py.
"""

import itertools

import numpy as np
import pytest

from minidl.comm import double_tree
from minidl.comm.double_tree import height_of, seat
from minidl.comm.observe.ledger import Ledger
from tests.conftest import ranks


def trees(n):
    """The parents of all ranks in tree 1 and in tree 2."""
    return tuple([seat(n, rank, tree).parent for rank in range(n)] for tree in (0, 1))


MANY = [*range(1, 66), 127, 128, 129, 255, 256, 257, 1023, 1024, 1029]


@pytest.mark.parametrize(
    "n, tree_1, tree_2",
    [
        (1, [None], [None]),
        (2, [None, 0], [1, None]),
        (3, [None, 2, 0], [1, None, 0]),
        (4, [None, 2, 0, 2], [1, 3, 1, None]),
        (7, [None, 2, 4, 2, 0, 6, 4], [5, None, 3, 5, 3, 1, 0]),
        (8, [None, 2, 4, 2, 0, 6, 4, 6], [1, 3, 1, 7, 5, 3, 5, None]),
    ],
)
def test_golden_parents(n, tree_1, tree_2):
    assert trees(n) == (tree_1, tree_2)


def test_each_is_a_binary_tree_of_all_ranks_of_the_least_height():
    for n, tree in itertools.product(MANY, (0, 1)):
        seats = [seat(n, rank, tree) for rank in range(n)]
        for rank, me in enumerate(seats):
            assert len(me.children) <= 2 and len(set(me.children)) == len(me.children)
            for child in me.children:
                assert seats[child].parent == rank
                assert seats[child].depth == me.depth + 1 and seats[child].height < me.height
            assert (me.height == 0) == (not me.children)
        assert sum(len(me.children) for me in seats) == n - 1  # every rank but the root, once
        assert [me.depth for me in seats].count(0) == 1
        assert max(me.depth for me in seats) == height_of(n) == int(np.ceil(np.log2(n)))
        root = next(me for me in seats if me.parent is None)
        assert root.height == height_of(n) and len(root.children) == min(n - 1, 1)


def test_inner_in_one_tree_and_leaf_in_the_other_but_for_rank_0_of_an_odd_number():
    for n in MANY[1:]:
        inner = [[bool(seat(n, rank, tree).children) for tree in (0, 1)] for rank in range(n)]
        inner_in_both = [rank for rank in range(n) if all(inner[rank])]
        leaf_in_both = [rank for rank in range(n) if not any(inner[rank])]
        assert inner_in_both == ([0] if n % 2 else []), n
        assert leaf_in_both == [], n


@pytest.mark.parametrize("segment_bytes", [8, 1 << 16])
@ranks(1, 2, 3, 4, 5, 6, 7, 8)
def test_bytes_and_messages_equal_the_formula(t, segment_bytes):
    for length in (0, 1, t.size - 1, t.size, t.size + 1, 101):
        ledger = Ledger(t)
        double_tree.all_reduce(ledger, np.ones(length, "f4"), segment_bytes=segment_bytes)
        assert ledger.bytes_sent == double_tree.bytes_sent(length, 4, t.size, t.rank)
        half = (length + 1) // 2 * 4  # bytes of the longer one
        segments = max(1, int(np.ceil(half / segment_bytes)))
        seats = [seat(t.size, t.rank, tree) for tree in (0, 1)]
        links = sum((me.parent is not None) + len(me.children) for me in seats)
        assert ledger.messages_sent == ledger.messages_received == links * segments
        neighbours = {peer for me in seats for peer in (me.parent, *me.children)} - {None}
        assert {row.peer for row in ledger.rows} == {t.ranks[peer] for peer in neighbours}


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 64])
@pytest.mark.parametrize("length", [0, 1, 1000])
def test_bytes_of_all_ranks_are_those_of_the_ring_and_none_sends_more_than_2K(n, length):
    sent = [double_tree.bytes_sent(length, 4, n, rank) for rank in range(n)]
    assert sum(sent) == 2 * (n - 1) * length * 4
    assert max(sent) <= 2 * length * 4 + 4  # one element: the halves of an odd length differ


def test_golden_bytes():
    # 8 ranks, 1,000 float32: halves of 2,000 bytes; one up as a leaf, one up and two down as an
    # inner rank; the roots, 0 and 7, have one child and no parent.
    assert [double_tree.bytes_sent(1000, 4, 8, r) for r in range(8)] == [4000] + [8000] * 6 + [4000]


@ranks(2, 3, 4, 5, 8)
def test_every_half_is_added_along_its_tree(t):
    # float32 values of very different size: another order gives other bits.
    n = t.size
    inputs = [
        (np.random.default_rng(r).normal(size=37) * 10.0 ** (r % 4 * 3)).astype("f4")
        for r in range(n)
    ]

    def total(rank, tree):
        result = inputs[rank].copy()
        for child in seat(n, rank, tree).children:
            result += total(child, tree)
        return result

    root_1, root_2 = (parents.index(None) for parents in trees(n))
    result = double_tree.all_reduce(t, inputs[t.rank].copy(), segment_bytes=12)
    assert (result[:19] == total(root_1, 0)[:19]).all()
    assert (result[19:] == total(root_2, 1)[19:]).all()
