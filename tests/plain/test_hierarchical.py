"""The page and the real one: the same bits, and the bytes of the real one's formula."""

import numpy as np
import pytest

from minidl.comm import Ledger
from minidl.comm import hierarchical as real
from minidl.plain import hierarchical, ring
from tests.comm.cases import data, length_of
from tests.conftest import ranks


def turned(n, g):
    """The nodes of g ranks in a row. In the real one the owner of a part adds last, and is the
    rank with its number; on the page part i begins on rank i. So the real one's list begins with
    each node's last rank: then both add in the same order, and the same rank owns a part."""
    return [[first + g - 1, *range(first, first + g - 1)] for first in range(0, n, g)]


@pytest.mark.parametrize("length", [0, 1, "n-1", "n", "n+1", 101])
@ranks(1, 2, 3, 4, 5, 8)
def test_all_reduce_has_the_bits_and_the_bytes_of_the_real_one(t, length):
    x = data(t.rank, length_of(length, t.size))
    for g in (g for g in range(1, t.size + 1) if t.size % g == 0):
        nodes = turned(t.size, g)
        ledger = Ledger(t)
        ours = hierarchical.all_reduce(ledger, x.copy(), g)
        np.testing.assert_array_equal(ours, real.on_nodes(t, nodes)(t, x.copy()))
        inside = sum(ledger.count(peer=peer).bytes_sent for peer in range(t.size)
                     if peer // g == t.rank // g)
        formula = real.bytes_sent(len(x), x.itemsize, nodes, t.rank)
        assert (inside, ledger.bytes_sent - inside) == formula


@ranks(3, 4, 5, 8)
def test_a_group_is_a_transport(t):
    """Ranks with an even number, from the last to the first; the others are not disturbed."""
    if t.rank % 2 == 0:
        group = hierarchical.Group(t, range(t.size - 1 - (t.size - 1) % 2, -1, -2))
        x = ring.all_reduce(group, data(group.rank, 7))
        n = group.size
        want = sum(data(r, 7, "f8") for r in range(n))
        np.testing.assert_allclose(x, want, atol=n * 9 * n * 6e-8)  # n sums below 9 n, float32
        if group.rank > 0:
            request = group.isend(x[:1] + group.rank, 0)
            group.send(x[:1] - group.rank, 0)
            request.wait()
        for source in range(1, group.size) if group.rank == 0 else ():
            arrived = np.empty_like(x[:1])
            group.irecv(arrived, source).wait()
            assert arrived == x[0] + np.float32(source)
            assert group.recv(arrived, source) == x[0] - np.float32(source)
