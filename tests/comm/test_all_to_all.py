"""All-to-all transposes blocks across ranks: equal ones, and rows by count."""

import numpy as np
import pytest

from minidl.comm import all_to_all as a2a
from minidl.comm import cost, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.scheduler import RankFailed
from tests.conftest import ranks

DTYPES = ["f2", "f4", "f8", "i4", "?"]


def block(src, dst, shape, dtype):
    """What src sends to dst: other values in every block and element."""
    x = np.random.default_rng([src, dst]).uniform(-9, 9, shape)
    return x > 0 if dtype == "?" else x.astype(dtype)


def count(src, dst):
    """Rows that src sends to dst: 0 to 4, some empty, not symmetric."""
    return (3 * src + 5 * dst * dst + src * dst) % 5


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4, 5, 8)
def test_block_i_came_from_rank_i(t, dtype, shape):
    x = np.stack([block(t.rank, dst, shape, dtype) for dst in range(t.size)])
    kept = x.copy()
    y = a2a.all_to_all(t, x)
    assert y.dtype == dtype and y.shape == x.shape and (x == kept).all()
    for src in range(t.size):
        assert (y[src] == block(src, t.rank, shape, dtype)).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_twice_is_the_identity(t):
    x = np.stack([block(t.rank, dst, (3,), "f4") for dst in range(t.size)])
    assert (a2a.all_to_all(t, a2a.all_to_all(t, x)) == x).all()


@ranks(2, 3, 4)
def test_a_strided_array(t):
    x = np.arange(6 * t.size).reshape(3, 2 * t.size) + 100 * t.rank
    y = a2a.all_to_all(t, x.T[::2])
    for src in range(t.size):
        assert (y[src] == np.arange(6 * t.size).reshape(3, -1)[:, 2 * t.rank] + 100 * src).all()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("row", [(), (2,)])
@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4, 5, 8)
def test_rows_arrive_in_the_order_of_their_senders(t, dtype, row, known):
    n, r = t.size, t.rank
    counts = [count(r, dst) for dst in range(n)]
    x = np.concatenate([block(r, dst, (counts[dst], *row), dtype) for dst in range(n)])
    counts_in = [count(src, r) for src in range(n)]
    y, got = a2a.all_to_all_v(t, x, counts, counts_in if known else None)
    assert got == counts_in and y.dtype == dtype
    expected = [block(src, r, (count(src, r), *row), dtype) for src in range(n)]
    assert (y == np.concatenate(expected)).all()


@ranks(1, 2, 3, 4, 5, 8)
def test_bytes_and_messages_equal_the_formula(t):
    n, r = t.size, t.rank
    ledger = Ledger(t)
    a2a.all_to_all(ledger, np.zeros((n, 5), "f4"))
    assert (ledger.bytes_sent, ledger.messages_sent) == (20 * (n - 1), n - 1)
    assert (ledger.bytes_received, ledger.messages_received) == (20 * (n - 1), n - 1)
    assert all(ledger.count(peer=p).bytes_sent == 20 for p in range(n) if p != r)
    counts, counts_in = [count(r, d) for d in range(n)], [count(s, r) for s in range(n)]
    for known, lengths in [(counts_in, 0), (None, 1)]:
        ledger.reset()
        a2a.all_to_all_v(ledger, np.zeros((sum(counts), 3), "f2"), counts, known)
        assert ledger.bytes_sent == 6 * (sum(counts) - counts[r]) + lengths * 8 * (n - 1)
        assert ledger.bytes_received == 6 * (sum(counts_in) - counts[r]) + lengths * 8 * (n - 1)
        assert ledger.messages_sent == ledger.messages_received == (1 + lengths) * (n - 1)
        assert ledger.count(label="all_to_all.all_to_all_v") == ledger.count()


@ranks(3, 4, 5)
def test_on_a_subgroup_in_another_order(t):
    group = t.subgroup([t.size - 1, 0])
    if group is not None:
        y, counts_in = a2a.all_to_all_v(group, np.full(3, group.rank), [1, 2])
        assert counts_in == [group.rank + 1] * 2
        assert (y == np.repeat([0, 1], group.rank + 1)).all()


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_sends_that_wait_for_their_receives_do_not_lock(n):
    def body(t):
        a2a.all_to_all(t, np.ones((n, 4)))
        a2a.all_to_all_v(t, np.ones(n), [1] * n)

    simulate(n, body, rendezvous_bytes=0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8, 16, 33, 64])
def test_time_equals_the_formula(n):
    alpha, beta = 2.0**-10, 2.0**-20  # sums of them are exact in floating point

    def body(t):
        ledger = Ledger(t)
        a2a.all_to_all(ledger, np.ones((n, 16), "f4"))
        return ledger.messages_sent, ledger.bytes_sent, t.time()

    got = np.max(simulate(n, body, alpha=alpha, beta=beta), axis=0)
    assert tuple(got) == cost.all_to_all(n, 64 * n, alpha, beta)


@pytest.mark.parametrize("shape", [(), (2,), (4, 3)])
def test_another_number_of_blocks_than_ranks_is_an_error(shape):
    with pytest.raises(RankFailed, match="one block for each of the 3 ranks"):
        simulate(3, lambda t: a2a.all_to_all(t, np.ones(shape)))


@pytest.mark.parametrize(
    "counts, counts_in, message",
    [
        ([1, 2], None, "3 counts, one for each rank"),
        ([1, -1, 3], None, "3 counts, one for each rank"),
        ([1, 1, 2], None, "whose sum is 4, and x of shape"),
        ([1, 1, 1], [1, 1], "3 counts_in, one for each rank"),
        ([1, 1, 1], [2, 2, 2], r"wanted counts_in\[0\] = counts\[0\]"),
    ],
)
def test_counts_that_do_not_fit_are_an_error(counts, counts_in, message):
    with pytest.raises(RankFailed, match=message):
        simulate(3, lambda t: a2a.all_to_all_v(t, np.ones(3), counts, counts_in))


def test_a_wrong_count_of_rows_to_come_is_an_error():
    def body(t):
        counts_in = [1, 1, 1] if t.rank else [1, 1, 2]
        a2a.all_to_all_v(t, np.ones(3), [1, 1, 1], counts_in)

    with pytest.raises(RankFailed) as caught:
        simulate(3, body)
    assert isinstance(caught.value.__cause__, SizeMismatch)


@ranks(2, 3, 4, mpi=False)
def test_a_watched_transport_accepts_counts_that_differ_between_ranks(t):
    counts = [count(t.rank, dst) for dst in range(t.size)]
    _, counts_in = a2a.all_to_all_v(Watch(t), np.zeros((sum(counts), 2)), counts)
    assert counts_in == [count(src, t.rank) for src in range(t.size)]
