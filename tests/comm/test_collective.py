"""A collective is named by its file and function, or by whoever called it first."""

import numpy as np
import pytest

from minidl.comm import labels, ring, simulate, tree
from minidl.comm.collective import collective
from minidl.comm.labels import about, current_label, in_collective
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport.scheduler import RankFailed
from tests.conftest import ranks

HERE = __name__.rpartition(".")[2]


@collective
def inner(t):
    """Doc."""
    return current_label(), in_collective()


@collective
def outer(t):
    return inner(t)


@ranks(1, 2)
def test_messages_are_labelled_by_file_and_function_of_the_outermost(t):
    assert (current_label(), in_collective()) == ("point-to-point", False)
    assert inner(t) == (f"{HERE}.inner", True)
    assert outer(t) == (f"{HERE}.outer", True)
    with t.named("weights"):
        assert (current_label(), in_collective()) == ("weights", False)
        with t.named("others"):
            assert outer(t) == ("weights", True)
    assert (current_label(), in_collective()) == ("point-to-point", False)
    assert inner.__doc__ == "Doc." and labels.label_of(inner) == f"{HERE}.inner"


@ranks(1, 2)
def test_an_error_ends_the_label(t):
    @collective
    def fails(t):
        raise KeyError

    with pytest.raises(KeyError):
        fails(t)
    with pytest.raises(KeyError), t.named("weights"):
        raise KeyError
    assert (current_label(), in_collective()) == ("point-to-point", False)


@ranks(2, mpi=False)
def test_the_outermost_alone_is_announced_to_the_transport(t):
    announced = []
    t.entering = lambda fn, args, kwargs: announced.append((fn.__name__, args, kwargs))

    @collective
    def with_arguments(t, *args, **kwargs):
        outer(t)

    with_arguments(t, 1, k=2)
    assert announced == [("with_arguments", (1,), {"k": 2})]


@ranks(1, 2, 3, 4)
def test_a_collective_that_is_not_waited_for_gives_a_handle(t):
    x, y = np.full(5, t.rank + 1.0), np.full(3, t.rank)
    jobs = [ring.all_reduce(t, x, wait=False), ring.all_reduce(t, y, op=np.maximum, wait=False)]
    assert tree.all_reduce(t, np.ones(1))[0] == t.size  # meanwhile, on the same transport
    assert jobs[1].wait()[0] == t.size - 1 and jobs[0].wait()[0] == t.size * (t.size + 1) / 2
    assert jobs[0].result is not None and jobs[0].done()


def test_what_a_block_is_about_is_compared_and_labels_stay():
    def body(t, names):
        ledger = Ledger(t)
        for name in names[t.rank]:
            with about(name):
                ring.all_reduce(ledger, np.ones(4))
        return ledger.count(label="ring.all_reduce").messages_sent

    assert simulate(2, body, ["ab", "ab"]) == [4, 4]
    with pytest.raises(RankFailed, match="collective differs"):
        simulate(2, body, ["ab", "ba"])
    with pytest.raises(RankFailed, match="name is ring.all_reduce of a on rank 0"):
        simulate(2, lambda t: body(Watch(t), ["ab", "ba"]))
