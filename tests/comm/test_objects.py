"""Objects arrive as they were, whatever their size and wherever the root is."""

import numpy as np
import pytest

from minidl.comm import objects
from minidl.comm.observe.ledger import Ledger
from tests.conftest import ranks


def value_of(rank):
    """Of another size and kind on every rank, with arrays whose bytes do not end at a word."""
    return {"rank": rank, "text": "é" * rank, "arrays": [np.arange(k) + rank for k in range(rank)]}


def same(a, b):
    return repr(a) == repr(b)


@pytest.mark.parametrize("root", [0, -1])
@ranks(1, 2, 3, 4, 5, 8)
def test_every_rank_gets_the_roots_object(t, root):
    root %= t.size
    assert same(objects.broadcast(t, value_of(t.rank), root), value_of(root))


@pytest.mark.parametrize("root", [0, -1])
@ranks(1, 2, 3, 4, 5, 8)
def test_the_root_gets_all_objects_in_rank_order(t, root):
    root %= t.size
    gathered = objects.gather(t, value_of(t.rank), root)
    if t.rank != root:
        assert gathered is None
        return
    assert same(gathered, [value_of(rank) for rank in range(t.size)])


@ranks(1, 2, 3, 4, 5, 8)
def test_every_rank_gets_all_objects_in_rank_order(t):
    assert same(objects.all_gather(t, value_of(t.rank)), [value_of(r) for r in range(t.size)])


@ranks(2, 3)
def test_two_in_a_row_do_not_mix(t):
    # Rank 1 has sent its second before rank 0 has all of the first.
    for k in range(3):
        gathered = objects.gather(t, (k, t.rank))
        assert gathered == (None if t.rank else [(k, rank) for rank in range(t.size)])


@ranks(1, 4)
def test_arrays_that_arrive_are_aligned_and_may_be_written(t):
    for value in objects.all_gather(t, [np.arange(3, dtype="u1"), np.arange(5.0), "odd"]):
        for array in value[:2]:
            assert array.flags.aligned and array.flags.writeable
        value[1] += 1
        assert value[1].tolist() == [1, 2, 3, 4, 5]


@ranks(2, 3)
def test_a_gather_sends_the_lengths_and_the_message(t):
    ledger = Ledger(t)
    objects.gather(ledger, value_of(t.rank))
    message = len(objects.pack(value_of(t.rank)))
    assert ledger.bytes_sent == 8 * (t.size - 1) + (message if t.rank else 0)


def test_the_message_is_a_header_the_raw_arrays_and_the_pickle():
    for sizes in ([], [7], [1, 8, 0]):
        arrays = [np.arange(size, dtype=np.uint8) for size in sizes]
        filled = sum((size + 7) // 8 * 8 for size in (*sizes, len(objects.pickled(arrays)[0])))
        message = objects.pack(arrays)
        assert len(message) == 8 * (2 + len(sizes)) + filled
        assert same(objects.unpack(message), arrays)
    small, large = (objects.pickled(np.zeros(n))[0] for n in (10, 10**6))
    assert abs(len(large) - len(small)) < 10  # the contents are not in the pickle
