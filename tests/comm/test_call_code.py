"""Ranks in different calls raise, without a Watch and without one byte more."""

import numpy as np
import pytest

from minidl.comm import (
    all_to_all, call_code, double_tree, halving_doubling, objects, ring, scatter_gather,
    shared_memory, tree,
)
from minidl.comm.labels import current_code
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from minidl.comm.transport.sim import simulate
from tests.conftest import ranks

# What rank 1 does where the others call ring.all_reduce(t, np.ones(8, "f4")): of the same bytes.
WRONG = {
    "dtype is int32 on rank 1, float32 on rank 0": lambda t: ring.all_reduce(t, np.ones(8, "i4")),
    "op differs": lambda t: ring.all_reduce(t, np.ones(8, "f4"), np.maximum),
    "collective differs": lambda t: tree.all_reduce(t, np.ones(8, "f4")),
}


def right(t):
    return ring.all_reduce(t, np.ones(8, "f4"))


@pytest.mark.parametrize("words", WRONG)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_call_that_would_be_wrong_in_silence_raises(words, n):
    with pytest.raises(RankFailed, match=words) as failed:
        simulate(n, lambda t: WRONG[words](t) if t.rank == 1 else right(t))
    assert isinstance(failed.value.__cause__, call_code.CallMismatch)
    assert "rank 0's message belongs to another call" in str(failed.value)


def test_two_roots():
    with pytest.raises(RankFailed, match="root differs. Pass the same root on all ranks"):
        simulate(3, lambda t: tree.broadcast(t, np.ones(8), t.rank // 2))


def test_names_that_are_swapped():
    def body(t):
        for name in ("weights", "biases") if t.rank else ("biases", "weights"):
            with t.named(name):
                right(t)

    with pytest.raises(RankFailed, match="collective differs"):
        simulate(2, body)


@ranks(1, 2, 3, 4)
def test_calls_that_agree_are_not_disturbed_by_other_messages(t):
    """A message with a tag that is under way is no collective's."""
    right_rank, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    sent = t.isend(np.full(8, t.rank, "f4"), right_rank, 5)
    for all_reduce in (ring, tree, halving_doubling, double_tree, shared_memory):
        assert all_reduce.all_reduce(t, np.ones(8, "f4"))[0] == t.size
    assert objects.all_gather(t, t.rank) == list(range(t.size))
    out = scatter_gather.scatter(t, np.arange(t.size) if t.rank == 0 else None, np.empty(1, int))
    assert out[0] == t.rank
    assert len(all_to_all.all_to_all(t, np.ones((t.size, 2)))) == t.size
    assert t.recv(np.empty(8, "f4"), left, 5)[0] == left
    sent.wait()


@ranks(2, 3)
def test_the_check_sends_no_message_and_no_byte(t):
    ledger = Ledger(t)
    ring.all_reduce(ledger, np.ones(10))
    assert ledger.bytes_sent == ring.bytes_sent(10, 8, t.size, t.rank)
    assert ledger.messages_sent == 2 * (t.size - 1) and ledger.count().control == 0


def code(fn, *args, label=None, **kwargs):
    return call_code.code_of(fn.__wrapped__, label, args, kwargs)


def test_a_code_is_of_the_call_not_of_how_it_is_written():
    x = np.ones(8, "f4")
    assert code(ring.all_reduce, x) == code(ring.all_reduce, x, np.add)
    assert code(ring.all_reduce, x, op=np.maximum) == code(ring.all_reduce, x, np.maximum)
    assert code(tree.broadcast, x) == code(tree.broadcast, x=x, root=0)
    assert code(objects.broadcast, 1) == code(objects.broadcast, "any value: it is the rank's own")
    assert 0 < code(ring.all_reduce, x) < 2**call_code.BITS


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u4", ">f4", "M8[s]", "c8", "?"])
def test_every_dtype_has_a_code_of_its_own(dtype):
    others = [d for d in ("f2", "f4", "f8", "i4", "u4", ">f4", "M8[s]", "c8", "?") if d != dtype]
    mine = code(ring.all_reduce, np.ones(1).astype(dtype) if dtype[0] != "M" else
                np.zeros(1, dtype))
    assert mine not in [code(ring.all_reduce, np.zeros(1, d)) for d in others]


def test_outside_of_a_collective_there_is_none():
    assert current_code() == 0
