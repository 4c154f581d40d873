"""The chain: a copy from every root, each byte sent once by every rank but the last."""

import numpy as np
import pytest

from minidl.comm import chain, simulate
from minidl.comm.observe.ledger import Ledger
from tests.conftest import ranks


def data(rank, length):
    return np.arange(length) * 100 + rank


@pytest.mark.parametrize("segment_bytes", [1, 8, 100, 1 << 16])
@ranks(1, 2, 3, 4, 5, 8)
def test_broadcast_copies_from_every_root(t, segment_bytes):
    for length in (0, 1, t.size - 1, t.size, t.size + 1, 37):
        for root in range(t.size):
            x = data(t.rank, length)
            assert chain.broadcast(t, x, root, segment_bytes) is x
            assert (x == data(root, length)).all()


@ranks(2, 3, 5)
def test_any_shape_and_strides(t):
    grid = np.zeros((4, 6), "f2")
    grid[::2, 1::2] = t.rank + 1
    chain.broadcast(t, grid[::2, 1::2], 1, segment_bytes=4)
    assert (grid[::2, 1::2] == 2).all() and grid.sum() == 12
    whole = data(t.rank, 30).reshape(2, 3, 5)
    assert (chain.broadcast(t, whole) == data(0, 30).reshape(2, 3, 5)).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_and_messages(t):
    for root in (0, t.size - 1):
        ledger = Ledger(t)
        chain.broadcast(ledger, np.zeros(100, "f4"), root, segment_bytes=64)
        hands_on = (t.rank - root) % t.size < t.size - 1
        assert (ledger.messages_sent, ledger.bytes_sent) == (7 * hands_on, 400 * hands_on)
        assert ledger.messages_received == 7 * (t.rank != root)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_no_send_may_rely_on_a_buffer(n):
    def body(t):
        return chain.broadcast(t, data(t.rank, 100), n - 1, segment_bytes=64)

    for result in simulate(n, body, rendezvous_bytes=0):
        assert (result == data(n - 1, 100)).all()


def test_segments_overtake_the_whole_message():
    # 8 ranks: 7 messages one after the other, or 16 segments that follow each other: 16 + 6 parts.
    def seconds(segment_bytes):
        def body(t):
            chain.broadcast(t, np.zeros(1600, "u1"), segment_bytes=segment_bytes)
            return t.time()

        return max(simulate(8, body, alpha=0.0, beta=1.0))

    assert (seconds(1600), seconds(100)) == (7 * 1600, 22 * 100)
