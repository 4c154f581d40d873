"""The ledger counts what passes through it: by peer, collective and group."""

import inspect

import numpy as np
import pytest

from minidl.comm import ring, tree
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.ledger import Count, Ledger
from minidl.comm.observe.places import spot
from minidl.comm.transport.background import Background
from minidl.course.tutorial import heat_map
from minidl.plain import naive
from tests.conftest import ranks


def here(lines=0):
    """file:line of the caller, or of so many lines away."""
    frame = inspect.currentframe().f_back
    return spot(__file__, frame.f_lineno + lines)


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
    with ledger.named("gradients"), ledger.named("layer 3"):
        ring.all_reduce(ledger, x)
    ledger.sendrecv(x, t.rank, x.copy(), t.rank)
    labels = {row.label for row in ledger.rows}
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
    ledger.reset()  # of the subgroups, too
    assert ledger.count() == Count()


@ranks(4, mpi=False)
def test_the_report_lists_rows_and_total(t):
    ledger = Ledger(t)
    ring.all_reduce(ledger, np.zeros(1000, "f4"))
    lines = ledger.report().splitlines()
    assert lines[0] == f"rank {t.rank}" and len(lines) == 5
    assert lines[-1].split() == ["total", "6,000", "6", "6,000", "6", "0"]
    (right,) = (line.split() for line in lines[2:4] if line.split()[2] == str((t.rank + 1) % 4))
    assert right[:3] == ["ring.all_reduce", "0-3", str((t.rank + 1) % 4)]
    assert right[3:] == ["6,000", "6", "0", "0", "0", here(-6)]


@ranks(2)
def test_of_a_window_reads_are_received_and_what_others_read_is_sent(t):
    ledger = Ledger(t)
    ledger.shared(64).moved([1 - t.rank], 5, 3)
    assert ledger.rows == {
        (t.ranks, "point-to-point", t.ranks[1 - t.rank], here(-2)): Count(3, 0, 5, 0)
    }


@ranks(2, mpi=False)
def test_a_failed_receive_is_not_counted(t):
    ledger = Ledger(t)
    if t.rank == 0:
        ledger.send(np.zeros(3, "u1"), 1)
    else:
        with pytest.raises(SizeMismatch):
            ledger.recv(np.zeros(2, "u1"), 0)
        assert ledger.count() == Count()


@ranks(2, 3)
def test_counts_by_the_line_of_the_users_code(t):
    ledger = Ledger(t)
    x = np.zeros(12, "f4")
    other = (t.rank + 1) % t.size, (t.rank - 1) % t.size

    def nested():
        tree.all_reduce(ledger, x)  # a reduce and a broadcast inside: one line
        return here(-1)

    for _ in range(2):
        ring.all_reduce(ledger, x)
        first = here(-1)
    second = nested()
    # fmt: off
    ledger.send(x[:1], other[0])
    sent = here(-1)
    ledger.isend(x[:2], other[0]).wait()
    isent = here(-1)
    requests = [ledger.irecv(x[:1], other[1]), ledger.irecv(x[1:3], other[1])]
    received = here(-1)
    for request in requests:
        request.wait()  # the line of the irecv counts, not of the wait
    ledger.sendrecv(x[:3], other[0], x[4:7], other[1])
    both = here(-1)
    ledger.isend(x[:4], other[0], tag=1).wait()
    ledger.recv_any(tag=1)
    any_ = here(-1)
    # fmt: on
    sites = {row.site for row in ledger.rows}
    assert {first, second, sent, isent, received, both, any_} < sites and len(sites) == 8
    assert ledger.count(site=first) == ledger.count(label="ring.all_reduce") != Count()
    assert ledger.count(site=second) == ledger.count(label="tree.all_reduce") != Count()
    assert ledger.count(site=sent) == Count(4, 1, 0, 0)
    assert ledger.count(site=isent) == Count(8, 1, 0, 0)
    assert ledger.count(site=received) == Count(0, 0, 12, 2)
    assert ledger.count(site=both) == Count(12, 1, 12, 1)
    assert ledger.count(site=any_) == Count(0, 0, 16, 1)


@ranks(2, 3)
def test_background_work_counts_where_it_was_submitted(t):
    ledger = Ledger(t)
    with Background(ledger) as background:
        for i in range(2):
            background.submit(ring.all_reduce, np.zeros(5 + i))
        background.submit(lambda u: tree.barrier(u))
    assert {(row.label, row.site) for row in ledger.rows} == {
        ("ring.all_reduce", here(-3)),
        ("tree.barrier", here(-3)),  # in the lambda, which has a line of its own
    }


@ranks(1, 2, 3)
def test_off_counts_nothing_and_on_counts_again(t):
    ledger = Ledger(t)
    group = ledger.subgroup(range(t.size))
    pending = ledger.irecv(np.zeros(1), (t.rank - 1) % t.size, tag=5)  # begun while it counts
    ledger.off()
    exchange(ledger)
    exchange(group)
    ring.all_reduce(group, np.zeros(7))
    assert ledger.rows == {}
    ledger.on()
    ledger.send(np.zeros(1), (t.rank + 1) % t.size, tag=5)
    pending.wait()
    assert ledger.count() == Count(8, 1, 8, 1)


@ranks(1, 2, 3, 4, 5)
def test_the_matrix_is_every_ranks_bytes_to_every_rank(t):
    n = t.size
    ledger = Ledger(t)
    group = ledger.subgroup([r for r in range(n) if r != 1])
    for length in (0, 1, 4 * n - 1):
        ring.all_reduce(ledger, np.zeros(length, "f4"))
        naive.all_reduce(ledger, np.zeros(length, "u1"))
    if group:
        tree.broadcast(group, np.zeros(3, "u1"))
    got = ledger.matrix(label="ring.all_reduce")
    want = np.zeros((n, n), int)
    for rank in range(n):
        lengths = (0, 1, 4 * n - 1)
        want[rank, (rank + 1) % n] = sum(ring.bytes_sent(k, 4, n, rank) for k in lengths)
    assert (got == want).all() and got.dtype == np.int64
    want[1:, 0] += 4 * n  # naive: all send to rank 0, which answers
    want[0, 1:] += 4 * n
    everything = ledger.matrix()
    assert (ledger.matrix() == everything).all(), "asking counts nothing"
    if n > 2:
        assert (everything - want).sum() == 3 * (n - 2)
        assert (ledger.matrix(label="tree.broadcast") == everything - want).all()
        if group:  # on the subgroup itself, by its ranks
            inside = group.matrix(group=group.ranks)
            assert inside.shape == (n - 1, n - 1) and inside.sum() == 3 * (n - 2)


def test_the_heat_map_shows_senders_down_and_receivers_across():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    n_bytes = np.array([[0, 1500], [7, 0]])
    figure, axes = pyplot.subplots()
    cells = heat_map(axes, n_bytes)
    assert (cells.get_array().reshape(2, 2) == n_bytes).all()
    assert axes.yaxis_inverted() and not axes.xaxis_inverted()  # rank 0 in the upper left
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {(1.5, 0.5): "1.5k", (0.5, 1.5): "7"}  # (column, row): none where none was sent
    assert axes.get_xlabel() == "to rank" and axes.get_ylabel() == "from rank"
    pyplot.close(figure)
