"""Scatter and gather: right from and onto every root, with the bytes of the tree's formula."""

import numpy as np
import pytest

from minidl.comm import cost, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.scatter_gather import gather, scatter
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.conftest import ranks

DTYPES = ["f2", "f4", "f8", "i4", "?"]


def uneven(n):
    """Bounds whose blocks have very different lengths; with 3 ranks and more some are empty."""
    return [0, *np.cumsum([r * r % 7 * (r % 3 != 1) + (r == n - 1) for r in range(n)]).tolist()]


def even(n, length):
    return [length * r for r in range(n + 1)]


def cuts(n):
    """(bounds, shape of a row): uneven, empty and equal blocks, of numbers and of rows."""
    return [(uneven(n), ()), (uneven(n), (3,)), (even(n, 0), ()), (even(n, 5), (2,))]


def data(shape, dtype):
    x = np.random.default_rng(7).uniform(-9, 9, shape)
    return x > 0 if dtype == "?" else x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4, 5, 8)
def test_scatter_gives_every_rank_its_block_from_every_root(t, dtype):
    for bounds, row in cuts(t.size):
        x = data((bounds[-1], *row), dtype)
        mine = x[bounds[t.rank] : bounds[t.rank + 1]]
        for root in range(t.size):
            out = np.empty_like(mine)
            have = x.copy() if t.rank == root else None
            assert scatter(t, have, out, root, bounds) is out and (out == mine).all()
            if t.rank == root:
                assert (have == x).all()


@pytest.mark.parametrize("dtype", DTYPES)
@ranks(1, 2, 3, 4, 5, 8)
def test_gather_puts_the_blocks_in_order_on_every_root(t, dtype):
    for bounds, row in cuts(t.size):
        x = data((bounds[-1], *row), dtype)
        mine = x[bounds[t.rank] : bounds[t.rank + 1]].copy()
        for root in range(t.size):
            result = gather(t, mine, root, bounds)
            if t.rank == root:
                assert result.dtype == dtype and result.shape == x.shape and (result == x).all()
            else:
                assert result is None


@ranks(1, 2, 3, 4, 5, 8)
def test_without_bounds_the_blocks_are_equal(t):
    mine = np.arange(6).reshape(2, 3) + 10 * t.rank
    expected = naive.gather(t, mine)
    for root in range(t.size):
        result = gather(t, mine, root)
        if t.rank == 0 == root:
            assert (result == np.concatenate(expected)).all()
        assert (scatter(t, result, np.empty_like(mine), root) == mine).all()


@ranks(2, 3, 4)
def test_strided_arrays(t):
    grid = np.zeros((4, 6), "i4")
    grid[::2, 1::2] = t.rank + np.arange(6).reshape(2, 3)
    result = gather(t, grid[::2, 1::2], 1)
    wide = None if result is None else np.repeat(result, 2, axis=1)[:, ::2]
    out = np.zeros((4, 6), "i4")
    scatter(t, wide, out[::2, 1::2], 1)
    assert (out == grid).all()


def subtree_bytes(bounds, root, n, v):
    """Bytes (of 4) of the blocks of rank v's subtree, v counted from the root."""
    width = v & -v if v else n
    return sum(
        4 * (bounds[(u + root) % n + 1] - bounds[(u + root) % n])
        for u in range(v, min(v + width, n))
    )


@ranks(1, 2, 3, 4, 5, 8)
def test_the_tree_sends_each_subtree_once_to_its_top(t):
    n = t.size
    bounds = uneven(n)
    x = np.zeros(bounds[-1], "f4")
    own = x[bounds[t.rank] : bounds[t.rank + 1]]
    for root in range(n):
        v = (t.rank - root) % n
        through, whole = subtree_bytes(bounds, root, n, v), own.nbytes
        children = [c for c in range(v + 1, n) if c - (c & -c) == v]
        down, up = Ledger(t), Ledger(t)
        scatter(down, x if v == 0 else None, own.copy(), root, bounds)
        assert (down.bytes_sent, down.messages_sent) == (through - whole, len(children))
        assert (down.bytes_received, down.messages_received) == (through * (v > 0), int(v > 0))
        assert down.count(label="scatter_gather.scatter") == down.count()
        gather(up, own.copy(), root, bounds)
        assert (up.bytes_received, up.messages_received) == (down.bytes_sent, down.messages_sent)
        assert (up.bytes_sent, up.messages_sent) == (down.bytes_received, down.messages_received)
        assert down.messages_sent <= (n - 1).bit_length()


@ranks(3, 4, 5)
def test_on_a_subgroup_in_another_order(t):
    group = t.subgroup([t.size - 1, 0, 1])
    if group is not None:
        whole = gather(group, np.full(group.rank, t.rank), 2, [0, 0, 1, 3])
        if group.rank == 2:
            assert whole.tolist() == [0, 1, 1]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_sends_that_wait_for_their_receives_do_not_lock(n):
    def body(t):
        for root in range(n):
            whole = gather(t, np.full(3, t.rank), root)
            assert (scatter(t, whole, np.empty(3, int), root) == t.rank).all()

    simulate(n, body, rendezvous_bytes=0)


def measured(n, fn):
    """(messages and bytes of the busiest rank, the last rank's clock) of fn(t)."""

    def body(t):
        t = Ledger(t)
        fn(t)
        return t.messages_sent, t.bytes_sent, t.time()

    # powers of two, so that sums of them are exact in floating point
    return tuple(np.max(simulate(n, body, alpha=2.0**-10, beta=2.0**-20), axis=0))


def scatter_all(t):
    scatter(t, np.zeros(16 * t.size, "f4"), np.zeros(16, "f4"))


def gather_all(t):
    gather(t, np.zeros(16, "f4"))


@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32, 64])
def test_time_equals_the_formula(n):
    assert measured(n, scatter_all) == cost.scatter(n, 64 * n, 2.0**-10, 2.0**-20)
    assert measured(n, gather_all) == cost.gather(n, 64 * n, 2.0**-10, 2.0**-20)


@pytest.mark.parametrize("n", [3, 5, 6, 7, 9, 33, 63])
def test_elsewhere_the_formula_is_a_bound(n):
    for formula, run in [(cost.scatter, scatter_all), (cost.gather, gather_all)]:
        bounds = formula(n, 64 * n, 2.0**-10, 2.0**-20)
        assert all(got <= bound for got, bound in zip(measured(n, run), bounds, strict=True))


def test_arrays_that_do_not_fit_are_an_error():
    def wrong(x, out, bounds=None):
        with pytest.raises(RankFailed) as caught:
            simulate(2, lambda t: scatter(t, x, out.copy(), 0, bounds))
        return str(caught.value)

    one = np.zeros(1)
    assert "in one array, float64 of shape (2,)" in wrong(None, one)
    assert "got float64 of shape (3,)" in wrong(np.zeros(3), one)
    assert "got float32 of shape (2,)" in wrong(np.zeros(2, "f4"), one)
    assert "wanted a block of 2 rows" in wrong(np.zeros(4), one, [0, 2, 4])
    assert "must be 3 numbers from 0 on" in wrong(np.zeros(4), one, [1, 2, 4])


def test_unequal_blocks_without_bounds_are_an_error():
    with pytest.raises(RankFailed) as caught:
        simulate(2, lambda t: gather(t, np.ones(3 + t.rank)))
    assert isinstance(caught.value.__cause__, SizeMismatch)


@ranks(2, 3, 4, mpi=False)
def test_a_watched_transport_accepts_what_may_differ_between_ranks(t):
    t = Watch(t)
    bounds = uneven(t.size)
    own = np.full(bounds[t.rank + 1] - bounds[t.rank], t.rank)
    whole = gather(t, own, 1, bounds)
    assert (scatter(t, whole, own.copy(), 1, bounds) == own).all()


@ranks(2, 3, 4)
def test_the_dtype_stays_also_where_bytes_are_swapped(t):
    for dtype in (">f4", ">i2"):
        x = np.arange(2 * t.size).astype(dtype)
        for root in range(t.size):
            out = scatter(t, x if t.rank == root else None, np.empty(2, dtype), root)
            assert out.tolist() == [2 * t.rank, 2 * t.rank + 1]
            whole = gather(t, out, root)
            assert t.rank != root or (whole.dtype == dtype and whole.tolist() == x.tolist())
