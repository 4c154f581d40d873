"""The simulator: its clock, its determinism, its reports."""

import contextvars
import gc
import inspect
import re

import numpy as np
import pytest

from minidl.comm import naive, ring, shared_memory, simulate
from minidl.comm.checks import SizeMismatch
from minidl.comm.observe.places import spot
from minidl.comm.transport.background import Background
from minidl.comm.transport.links import Links
from minidl.comm.transport.network import Group, Inbox
from minidl.comm.transport.scheduler import Deadlock, RankFailed
from tests.conftest import ranks


def line_of(fn, text):
    """The line number of the line of fn's source that contains text."""
    lines, first = inspect.getsourcelines(fn)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_returns_every_ranks_result_and_passes_arguments():
    assert simulate(3, lambda t, a, b: (t.rank, t.size, a + b), 1, 2) == [
        (r, 3, 3) for r in range(3)
    ]


def test_a_message_takes_alpha_and_beta():
    def body(t):
        if t.rank == 0:
            request = t.isend(np.zeros(4, "u1"), 1)
            sent = t.time()
            request.wait()
            return sent, t.time()
        t.recv(np.zeros(4, "u1"), 0)
        return t.time()

    # Starting costs nothing, the port is busy 4 beta, and the message is there alpha later.
    assert simulate(2, body, alpha=1.0, beta=0.25) == [(0.0, 1.0), 2.0]


def test_a_sending_port_serves_one_message_at_a_time():
    def body(t):
        if t.rank == 0:
            for request in [t.isend(np.zeros(4, "u1"), dst) for dst in (1, 2, 3)]:
                request.wait()
        else:
            t.recv(np.zeros(4, "u1"), 0)
        return t.time()

    assert simulate(4, body, alpha=10.0, beta=1.0) == [12.0, 14.0, 18.0, 22.0]


def test_a_receiving_port_serves_one_message_at_a_time():
    def body(t):
        if t.rank:
            t.send(np.zeros(4, "u1"), 0)
        else:
            for src in (1, 2, 3):
                t.recv(np.zeros(4, "u1"), src)
        return t.time()

    assert simulate(4, body, alpha=10.0, beta=1.0)[0] == 10.0 + 3 * 4.0


def test_an_early_message_does_not_queue_behind_a_later_one():
    def body(t):
        if t.rank == 1:
            t.compute(100.0)
        if t.rank:
            t.send(np.zeros(4, "u1"), 0)
        else:
            t.recv(np.zeros(4, "u1"), 1)  # comes at 100 + 1 + 4
            t.recv(np.zeros(4, "u1"), 2)  # came at 5
        return t.time()

    assert simulate(3, body, alpha=1.0, beta=1.0)[0] == 105.0


def test_ports_are_full_duplex():
    def body(t):
        t.sendrecv(np.zeros(4, "u1"), 1 - t.rank, np.zeros(4, "u1"), 1 - t.rank)
        return t.time()

    assert simulate(2, body, alpha=1.0, beta=1.0) == [5.0, 5.0]


def test_what_is_sent_and_what_is_received_take_their_own_time():
    # Rank 1's message waits in the queue, so its sendrecv is the short one in one piece.
    def body(t):
        if t.rank:
            t.compute(1.0)
        mine, theirs = (1, 4) if t.rank else (4, 1)
        t.sendrecv(np.zeros(mine, "u1"), 1 - t.rank, np.zeros(theirs, "u1"), 1 - t.rank)
        return t.time()

    assert simulate(2, body, alpha=0.25, beta=1.0) == [4.0, 0.25 + 4.0]
    links = Links.uniform(0.25, 1.0, pairs={(0, 1): (0.25, 8.0)})
    assert simulate(2, body, links=links) == [32.0, 0.25 + 32.0]


def test_a_sendrecv_queues_behind_a_send_that_was_not_waited_for():
    # Rank 0's port: 8 s for the large message from 2.25 on, then 2 s for the small one, whose
    # answer lies there already: the sendrecv in one piece.
    def body(t):
        large, small, into = np.zeros(8, "u1"), np.zeros(2, "u1"), np.zeros(2, "u1")
        if t.rank:
            t.send(small, 0)
            t.send(small, 0)
            t.recv(large, 0)
            t.recv(into, 0)
        else:
            t.recv(into, 1)
            request = t.isend(large, 1)
            t.sendrecv(small, 1, into, 1)
            request.wait()
        return t.time()

    assert simulate(2, body, alpha=0.25, beta=1.0) == [12.25, 12.5]


def test_compute_moves_one_ranks_clock():
    def body(t):
        t.compute(float(t.rank))
        return t.time()

    assert simulate(3, body) == [0.0, 1.0, 2.0]


def test_recv_any_takes_the_earliest_message_whatever_ran_first():
    # Rank 1's message leaves last in modelled time, rank 3's first.
    def body(t):
        if t.rank:
            t.compute(10.0 - t.rank)
            t.send(np.zeros(1, "u1"), 0)
            return None
        return [(t.recv_any()[0], t.time()) for _ in range(3)]

    assert simulate(4, body, alpha=0.5, beta=0.0)[0] == [(3, 7.5), (2, 8.5), (1, 9.5)]


def test_recv_any_waits_for_a_message_that_a_chain_brings_earlier():
    # Rank 1 sends late; rank 3's message is early but comes through rank 2, which runs after it.
    def body(t):
        token = np.zeros(1, "u1")
        if t.rank == 1:
            t.compute(10.0)
            t.send(token, 0)
        elif t.rank == 2:
            t.recv(token, 3)
            t.send(token, 0)
        elif t.rank == 3:
            t.compute(2.0)
            t.send(token, 2)
        else:
            return [t.recv_any()[0], t.recv_any()[0]]

    assert simulate(4, body, alpha=1.0, beta=0.0)[0] == [2, 1]


def test_recv_any_does_not_take_a_late_message_because_it_is_there():
    # When rank 0 looks, rank 1's message of time 11 is there; rank 2's of time 4 is not yet sent.
    def body(t):
        token = np.zeros(1, "u1")
        if t.rank == 1:
            t.send(token, 0, tag=9)
            t.compute(10.0)
            t.send(token, 0)
        elif t.rank == 2:
            t.recv(token, 3)
            t.send(token, 0)
        elif t.rank == 3:
            t.compute(2.0)
            t.send(token, 2)
        else:
            t.recv(token, 1, tag=9)
            return [(t.recv_any()[0], t.time()) for _ in range(2)]

    assert simulate(4, body, alpha=1.0, beta=0.0)[0] == [(2, 4.0), (1, 11.0)]


def test_two_tasks_of_a_rank_share_its_port_in_the_order_of_their_clocks():
    # The spawned task is ready first but sends at 50; the other sends at 5, and need not wait.
    def body(t):
        x = np.zeros(1, "u1")
        if t.rank == 0:

            def late():
                t.compute(50.0)
                t.send(x, 1, tag=1)

            handle = t.spawn(late)
            t.recv(x, 1)  # comes at 1 + 1
            t.send(x, 1, tag=2)
            sent = t.time()
            handle.wait()
            return sent, t.time()
        t.send(x, 0)
        t.recv(x, 0, tag=2)
        t.recv(x, 0, tag=1)

    assert simulate(2, body, alpha=1.0, beta=1.0)[0] == (3.0, 51.0)


def test_waiting_for_a_spawned_task_joins_its_clock():
    def body(t):
        t.compute(1.0)
        handle = t.spawn(t.compute, 3.0)
        early = t.time()
        handle.wait()
        return early, t.time()

    assert simulate(1, body) == [(1.0, 4.0)]


def test_every_run_is_the_same():
    def body(t):
        log = []
        background = Background(t)
        jobs = [background.submit(ring.all_reduce, np.full(50, 1.0 + t.rank)) for _ in range(3)]
        if t.rank:
            t.compute(t.rank * 1e-5)
            t.send(np.array([t.rank]), 0, tag=3)
        else:
            log = [t.recv_any(tag=3)[0] for _ in range(t.size - 1)]
        return [job.wait().tobytes() for job in jobs], log, t.time()

    assert simulate(5, body) == simulate(5, body)


@ranks(2, 3, mpi=False)
def test_messages_are_copied_when_sent(t):
    x = np.full(3, t.rank)
    request = t.isend(x, (t.rank + 1) % t.size)
    x[:] = -1
    got = t.recv(np.empty(3, x.dtype), (t.rank - 1) % t.size)
    request.wait()
    assert (got == (t.rank - 1) % t.size).all()


variable = contextvars.ContextVar("variable", default="unset")


def test_every_rank_has_its_own_context_variables():
    variable.set("outside")

    def body(t):
        before = variable.get()
        variable.set(t.rank)
        naive.all_reduce(t, np.zeros(1))  # the other ranks run and set theirs
        inherited = t.spawn(variable.get).wait()
        return before, variable.get(), inherited

    assert simulate(3, body) == [("unset", rank, rank) for rank in range(3)]
    assert variable.get() == "outside"


# -- what goes wrong


def test_an_error_ends_the_run_and_names_its_rank():
    cleaned = []

    def body(t):
        try:
            if t.rank == 2:
                raise KeyError("planted")
            naive.all_reduce(t, np.zeros(1))
        finally:
            cleaned.append(t.rank)

    with pytest.raises(RankFailed, match=r"^rank 2: KeyError: 'planted'$") as caught:
        simulate(4, body)
    assert caught.value.rank == 2
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    trace = cause.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    assert trace.tb_lineno == line_of(body, "raise KeyError")  # the traceback was kept
    assert sorted(cleaned) == [0, 1, 2]  # the others were ended; rank 3 had not begun


def test_a_deadlock_report_names_every_rank_what_it_waits_for_and_the_line():
    def body(t):
        if t.rank == 0:
            ring.all_reduce(t, np.zeros(9))
        elif t.rank == 1:
            t.recv(np.zeros(1), 2, tag=5)
        elif t.rank == 2:
            t.recv_any(tag=6)

    with pytest.raises(Deadlock) as caught:
        simulate(4, body)
    here = re.escape(spot(__file__, "")[:-1])
    a, b, c = (line_of(body, text) for text in ("ring.all_reduce", "t.recv(", "t.recv_any"))
    expected = (
        r"deadlock: none of the 4 ranks can go on\.\n"
        rf"  rank 0 waits for a message from rank 3 \(which has ended\), tag 0, "
        rf"in ring.all_reduce, "
        rf"at {here}:{a}\n"
        rf"  rank 1 waits for a message from rank 2, tag 5, in point-to-point, at {here}:{b}\n"
        rf"  rank 2 waits for a message from any rank, tag 6, in point-to-point, at {here}:{c}\n"
        r"  ended: rank 3"
    )
    assert re.fullmatch(expected, str(caught.value))


def test_the_report_of_a_background_job_names_the_line_that_submitted_it():
    def body(t):
        background = Background(t)
        if t.rank == 0:
            background.submit(ring.all_reduce, np.zeros(4)).wait()

    with pytest.raises(Deadlock) as caught:
        simulate(2, body)
    at = re.escape(f"at {spot(__file__, line_of(body, 'submit'))}\n")
    assert re.search("rank 0 waits for an event of its own rank, .*, " + at, str(caught.value))
    job = r"rank 0 \(spawned task\) waits for a message from rank 1 .*, in ring.all_reduce, "
    assert re.search(job + at, str(caught.value))


def send_first(t, n_floats):
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    x, into = np.zeros(n_floats, "f4"), np.empty(n_floats, "f4")
    t.send(x, right)
    t.recv(into, left)


def odd_even(t, n_floats):
    right, left = (t.rank + 1) % t.size, (t.rank - 1) % t.size
    x, into = np.zeros(n_floats, "f4"), np.empty(n_floats, "f4")
    if t.rank % 2:
        t.recv(into, left)
        t.send(x, right)
    else:
        t.send(x, right)
        t.recv(into, left)


@pytest.mark.parametrize("n", [2, 4])
def test_sends_before_receives_deadlock_for_large_messages_only(n):
    simulate(n, send_first, 128, rendezvous_bytes=4096)
    simulate(n, send_first, 100_000)
    with pytest.raises(Deadlock) as caught:
        simulate(n, send_first, 100_000, rendezvous_bytes=4096)
    line = line_of(send_first, "t.send(")
    for rank in range(n):
        assert (
            f"rank {rank} waits for the receive of its 400000 bytes by rank {(rank + 1) % n}, "
            f"tag 0, in point-to-point, at {spot(__file__, line)}"
        ) in str(caught.value)
    simulate(n, odd_even, 100_000, rendezvous_bytes=4096)  # the cure


@ranks(2, 3, 4, 5, mpi=False)
def test_collectives_work_when_every_send_is_a_rendezvous(t):
    def inner(t):
        x = np.arange(10) + t.rank
        return (ring.all_reduce(t, x.copy()) == naive.all_reduce(t, x)).all()

    assert all(simulate(t.size, inner, rendezvous_bytes=0))


def test_a_rendezvous_starts_when_its_receive_is_posted():
    def body(t):
        if t.rank == 0:
            t.send(np.zeros(4, "u1"), 1)
        else:
            t.compute(100.0)
            t.recv(np.zeros(4, "u1"), 0)
        return t.time()

    assert simulate(2, body, alpha=1.0, beta=1.0, rendezvous_bytes=0) == [104.0, 105.0]
    assert simulate(2, body, alpha=1.0, beta=1.0) == [4.0, 100.0]


def test_a_message_that_nobody_receives_is_an_error():
    def body(t):
        if t.rank == 0:
            t.send(np.zeros(3, "u1"), 1, tag=4)

    with pytest.raises(
        RuntimeError, match=r"rank 1: never received the 3 bytes that rank 0 sent \(tag 4"
    ):
        simulate(2, body)


def test_a_message_that_nobody_receives_in_a_group_that_is_gone_is_an_error():
    def body(t):
        group = t.subgroup(range(t.size))
        if t.rank == 0:
            group.send(np.zeros(3, "u1"), 1, tag=4)
        del group
        gc.collect()
        naive.all_reduce(t, np.ones(1))

    with pytest.raises(RuntimeError, match="rank 1: never received the 3 bytes that rank 0 sent"):
        simulate(2, body)


def test_a_message_waits_for_a_rank_that_makes_the_group_later():
    def body(t):
        if t.rank == 0:
            t.subgroup([0, 1]).send(np.arange(3), 1)
            gc.collect()
            t.send(np.zeros(0), 1)
        else:
            t.recv(np.zeros(0), 0)
            return t.subgroup([0, 1]).recv(np.zeros(3, int), 0).tolist()

    assert simulate(2, body) == [None, [0, 1, 2]]


def test_what_ranks_share_in_a_group_goes_with_it():
    """Red before: the inboxes and windows of every group that there had been were kept."""
    def body(t, n_groups):
        for _ in range(n_groups):
            group = t.subgroup(range(t.size))
            assert (shared_memory.all_reduce(group, np.ones(4)) == t.size).all()
        ring.all_reduce(t, np.ones(4))  # all come here, and have left their groups but the last
        gc.collect()
        return sum(type(each) in (Inbox, Group) for each in gc.get_objects())

    assert simulate(3, body, 10)[-1] == simulate(3, body, 1)[-1]


def test_a_size_mismatch_ends_the_run():
    def body(t):
        if t.rank == 0:
            t.send(np.zeros(3, "u1"), 1)
        else:
            t.recv(np.zeros(2, "u1"), 0)

    with pytest.raises(RankFailed, match="rank 1: .*expected 2 bytes from rank 0, got 3") as caught:
        simulate(2, body)
    assert isinstance(caught.value.__cause__, SizeMismatch)


def test_a_simulation_may_run_inside_another():
    def outer(t):
        inner = simulate(3, lambda u: naive.all_reduce(u, np.array([t.rank])).item())
        return inner, naive.all_reduce(t, np.array([1])).item()

    assert simulate(2, outer) == [([0, 0, 0], 2), ([3, 3, 3], 2)]


def test_a_thousand_ranks_agree():
    # 128 here, to be quick; benchmarks/bench_all_reduce.py runs 1,024.
    def body(t):
        return ring.all_reduce(t, np.arange(512.0) + t.rank)

    results = simulate(128, body)
    assert all((result == results[0]).all() for result in results)
    assert (results[0] == 128 * np.arange(512.0) + 128 * 127 / 2).all()
