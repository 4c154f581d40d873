"""The ledger counts what passes through it: by peer, collective and group."""

import numpy as np
import pytest

from minidl.comm import ring, tree
from minidl.comm.ledger import Count, Ledger
from minidl.comm.transport import SizeMismatch
from tests.conftest import ranks


def exchange(t):
    """Every way to move bytes, once around the ring of t."""
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    out, into = np.zeros(10, "f4"), np.zeros(10, "f4")
    t.sendrecv(out, right, into, left)
    request = t.irecv(into, left, tag=1)
    t.send(out[:5], right, tag=2)
    t.isend(out, right, tag=1).wait()
    request.wait()
    request.wait()  # waiting twice counts once
    t.recv_any(tag=2)


@ranks(1, 2, 3, 4)
def test_every_call_is_counted_once(t):
    ledger = Ledger(t)
    exchange(ledger)
    assert ledger.count() == Count(100, 3, 100, 3)
    ledger.reset()
    assert ledger.count() == Count() and ledger.rows == {}


@ranks(3, 4, 5)
def test_counts_by_peer(t):
    ledger = Ledger(t)
    exchange(ledger)
    assert ledger.count(peer=(t.rank + 1) % t.size) == Count(100, 3, 0, 0)
    assert ledger.count(peer=(t.rank - 1) % t.size) == Count(0, 0, 100, 3)


@ranks(2, 3, 4)
def test_the_outermost_label_wins(t):
    ledger = Ledger(t)
    x = np.zeros(12, "f4")
    ring.all_reduce(ledger, x)
    tree.barrier(ledger)
    with ledger.named("gradients"):
        ring.all_reduce(ledger, x)
    ledger.sendrecv(x, t.rank, x.copy(), t.rank)
    labels = {label for _, label, _ in ledger.rows}
    assert labels == {"ring.all_reduce", "tree.barrier", "gradients", "point-to-point"}
    assert ledger.count(label="gradients") == ledger.count(label="ring.all_reduce")
    assert ledger.count(label="point-to-point") == Count(48, 1, 48, 1)


@ranks(3, 4, 5)
def test_subgroups_count_in_the_same_ledger_by_world_rank(t):
    ledger = Ledger(t)
    group = ledger.subgroup([t.size - 1, 0])
    if t.rank in (0, t.size - 1):
        ring.all_reduce(group, np.zeros(8, "f4"))
        other = t.size - 1 - t.rank
        assert ledger.count(group=(t.size - 1, 0), peer=other) == Count(32, 2, 32, 2)
        assert group.count() == ledger.count()
    else:
        assert group is None and ledger.count() == Count()


@ranks(4, mpi=False)
def test_the_report_lists_rows_and_total(t):
    ledger = Ledger(t)
    ring.all_reduce(ledger, np.zeros(1000, "f4"))
    lines = ledger.report().splitlines()
    assert lines[0] == f"rank {t.rank}" and len(lines) == 5
    assert lines[-1].split() == ["total", "6,000", "6", "6,000", "6"]
    right = [line.split() for line in lines[2:4] if line.split()[2] == str((t.rank + 1) % 4)]
    assert right == [["ring.all_reduce", "0-3", str((t.rank + 1) % 4), "6,000", "6", "0", "0"]]


@ranks(2, mpi=False)
def test_a_failed_receive_is_not_counted(t):
    ledger = Ledger(t)
    if t.rank == 0:
        ledger.send(np.zeros(3, "u1"), 1)
    else:
        with pytest.raises(SizeMismatch):
            ledger.recv(np.zeros(2, "u1"), 0)
        assert ledger.count() == Count()
