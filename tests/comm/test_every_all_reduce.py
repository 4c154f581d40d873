"""What every all-reduce promises: the sum, the same bits on all ranks, any length, shape and op."""

import functools
import inspect
from functools import partial

import numpy as np
import pytest

from minidl.comm import double_tree, halving_doubling, hierarchical, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.comm.careful import Careful
from tests.comm.cases import all_reduces, bits_agree, data
from tests.conftest import ranks


def ragged(n):
    """Nodes of different sizes, their ranks not in a row: [[0, 1, 2, 6], [3, 7], [4], [5]]."""
    nodes = [[r for r in (0, 1, 2) if r < n]]
    nodes += [[r] for r in range(3, min(n, 6))]
    for r in range(6, n):
        nodes[(r - 6) % len(nodes)].append(r)
    return nodes


FOUND = all_reduces()
# Those that want arguments, or are run in more than one way: a function of a transport that gives
# f(t, x, op). All others that there are run as they are.
IN_WAYS = {
    "double_tree.all_reduce, small segments": lambda t: partial(
        double_tree.all_reduce, segment_bytes=16),
    "hierarchical.all_reduce": lambda t: hierarchical.on_nodes(t, 2),
    "hierarchical.all_reduce, ragged": lambda t: hierarchical.on_nodes(
        t, ragged(t.size), double_tree.all_reduce
    ),
    "hierarchical.leader_all_reduce": lambda t: partial(
        hierarchical.leader_all_reduce,
        groups=hierarchical.groups(t, 3),
        across=halving_doubling.all_reduce,
    ),
}
NOT_HERE = {
    "compressed.all_reduce": "it rounds what it sends: test_compressed.py",
    "select.all_reduce": "it hands on to one of the others: test_select.py",
    "shared_memory.all_reduce": "it sends no messages: test_shared_memory.py",
}
ALL_REDUCES = IN_WAYS | {label: lambda t, fn=fn: fn for label, fn in FOUND.items()
                         if label not in {*IN_WAYS, *NOT_HERE}}
every_all_reduce = pytest.mark.parametrize("name", ALL_REDUCES)
SIZES = (1, 2, 3, 4, 5, 6, 7, 8)


def lengths(n):
    """Empty and unequal chunks, halves and segments; a prime."""
    return (0, 1, n - 1, n, n + 1, 101)


def test_every_all_reduce_is_found_and_can_be_called_here():
    assert len(FOUND) > 9 and NOT_HERE.keys() <= FOUND.keys()
    assert {label.split(",")[0] for label in IN_WAYS} <= FOUND.keys()
    for label in ALL_REDUCES.keys() - IN_WAYS.keys():
        wanted = [p.name for p in inspect.signature(FOUND[label]).parameters.values()
                  if p.default is p.empty and p.name not in ("t", "x")]
        assert not wanted, (f"{label} wants {wanted}: give it a line in IN_WAYS of "
                            "tests/comm/test_every_all_reduce.py")


@functools.cache
def exact_sum(n, length, dtype):
    """The sum in float64, and how far a sum in the dtype may be from it."""
    inputs = [data(rank, length, dtype).astype("f8") for rank in range(n)]
    # Each of the n-1 additions rounds once, by eps/2 of a partial sum below sum |x|.
    eps = np.finfo(dtype).eps if np.dtype(dtype).kind == "f" else 0
    return np.sum(inputs, axis=0), n * eps / 2 * np.sum(np.abs(inputs), axis=0)


def check_sums(t, all_reduce, dtypes):
    """For every length and dtype: in place, the sum, the same bits everywhere."""
    for length in lengths(t.size):
        for dtype in dtypes:
            x = data(t.rank, length, dtype)
            result = all_reduce(t, x)
            assert result is x or result.base is x
            exact, bound = exact_sum(t.size, length, dtype)
            assert (np.abs(result.astype("f8") - exact) <= bound).all(), (length, dtype)
            assert bits_agree(t, result), (length, dtype)


@every_all_reduce
@ranks(*SIZES)
def test_the_sum_with_the_same_bits_on_all_ranks(t, name):
    check_sums(t, ALL_REDUCES[name](t), ("f2", "f4", "f8", "i8"))


@every_all_reduce
@pytest.mark.parametrize("n", range(1, 10))
def test_no_send_may_rely_on_a_buffer(name, n):
    # Every send waits for its receive, as MPI's large ones do: a wrong order would deadlock.
    simulate(n, lambda t: check_sums(t, ALL_REDUCES[name](t), ("f4",)), rendezvous_bytes=0)


@every_all_reduce
@ranks(2, 3, 4, 5, 6, 8, mpi=False)
def test_no_buffer_is_touched_before_its_request_was_waited_for(t, name):
    careful = Careful(t)
    for length in lengths(t.size):
        x = data(t.rank, length, "f4")
        ALL_REDUCES[name](careful)(careful, x)
        assert careful.pending == []  # and every request was


@every_all_reduce
@pytest.mark.parametrize("op", [np.maximum, np.minimum, np.multiply, np.logical_or])
@ranks(1, 2, 3, 4, 5, 8)
def test_other_operations_equal_the_naive_result(t, name, op):
    dtype = bool if op is np.logical_or else "i8"
    x = (data(t.rank, 40, "f4") % (t.rank + 2)).astype(dtype)
    expected = naive.all_reduce(t, x.copy(), op)
    assert (ALL_REDUCES[name](t)(t, x, op) == expected).all()


@every_all_reduce
@ranks(2, 3, 4, 5, 8)
def test_a_tie_of_zeros_or_a_nan_is_the_same_everywhere(t, name):
    # maximum(0.0, -0.0) may give either, and a nan has a payload: the order of operands decides.
    x = np.array([0.0, -0.0, np.nan, 1.0]) * (-1) ** t.rank
    x[3] = np.frombuffer(np.uint64(0x7FF8000000000000 + t.rank).tobytes(), "f8")[0]
    all_reduce = ALL_REDUCES[name](t)
    assert bits_agree(t, all_reduce(t, x.copy(), np.maximum))
    assert bits_agree(t, all_reduce(t, x.copy()))


@every_all_reduce
@ranks(1, 2, 3, 4, 5)
def test_any_shape(t, name):
    x = data(t.rank, 30, "i8").reshape(2, 3, 5)
    expected = naive.all_reduce(t, x.copy())
    result = ALL_REDUCES[name](t)(t, x)
    assert result.shape == (2, 3, 5) and (x == expected).all()
    scalar = np.array(t.rank + 1.0)
    assert ALL_REDUCES[name](t)(t, scalar).shape == () and scalar == t.size * (t.size + 1) / 2


@every_all_reduce
@ranks(3, 4, 5, 8)
def test_subgroups_work_at_the_same_time(t, name):
    # Even ranks in one group, odd ones in another in reverse order.
    even = t.subgroup([r for r in range(t.size) if r % 2 == 0])
    odd = t.subgroup([r for r in range(t.size)[::-1] if r % 2])
    group = even or odd
    expected = sum(data(r, 50, "i8") for r in group.ranks)
    assert (ALL_REDUCES[name](group)(group, data(t.rank, 50, "i8")) == expected).all()


@every_all_reduce
@ranks(1, 2, 3, 4, 5, 8)
def test_together_the_ranks_send_2_n_minus_1_K(t, name):
    if name == "halving_doubling.doubling_all_reduce":
        return  # all ranks send all of x in every step: that is its price
    for length in lengths(t.size):
        ledger = Ledger(t)
        all_reduce = ALL_REDUCES[name](ledger)
        all_reduce(ledger, np.ones(length, "f4"))
        sent = naive.all_reduce(t, np.array([ledger.bytes_sent]))
        assert sent == 2 * (t.size - 1) * length * 4


@every_all_reduce
@pytest.mark.parametrize("n", [2, 3, 5, 8])
@pytest.mark.parametrize("odd_one", [0, 1])
def test_unequal_sizes_are_an_error(name, n, odd_one):
    def body(t):
        ALL_REDUCES[name](t)(t, np.ones(2 * n + (t.rank == odd_one), "f4"))

    with pytest.raises(RankFailed, match="needs the same size on all ranks") as caught:
        simulate(n, body)
    assert isinstance(caught.value.__cause__, SizeMismatch)


@pytest.mark.parametrize("name", [
    "tree.all_reduce", "halving_doubling.all_reduce", "halving_doubling.doubling_all_reduce",
    "double_tree.all_reduce"])
def test_a_thousand_ranks(name):
    def body(t):
        x = np.arange(50) + t.rank
        return ALL_REDUCES[name](t)(t, x).tolist()

    expected = (1000 * np.arange(50) + 999 * 500).tolist()
    assert all(result == expected for result in simulate(1000, body))
