"""Background work: in order, beside the caller, and its errors reach whoever waits."""

import threading

import numpy as np
import pytest

from minidl.comm import ring, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.background import Background
from minidl.comm.transport.scheduler import RankFailed
from minidl.plain import naive
from tests.conftest import ranks


@ranks(1, 2, 3, 4)
def test_jobs_run_in_the_order_submitted(t):
    order = []

    def job(transport, i):
        order.append(i)
        return ring.all_reduce(transport, np.array([float(i)]))

    with Background(t) as background:
        jobs = [background.submit(job, i) for i in range(20)]
        # Waiting in another order does not change the order of the work.
        for i in reversed(range(20)):
            assert jobs[i].wait() == i * t.size
    assert order == list(range(20))


@ranks(1, 2, 3, 4)
def test_the_caller_communicates_meanwhile(t):
    with Background(t) as background:
        x = np.full(1000, t.rank, "i8")
        job = background.submit(ring.all_reduce, x)
        for i in range(5):
            assert naive.all_reduce(t, np.array([i])) == i * t.size
        assert (job.wait() == t.size * (t.size - 1) // 2).all()
        job.wait()  # again
        assert job.done()


@ranks(1, 2, 3)
def test_it_can_rest_and_start_again(t):
    with Background(t) as background:
        for i in range(5):
            assert background.submit(ring.all_reduce, np.array([i])).wait() == i * t.size
            naive.all_reduce(t, np.array([i]))


@ranks(1, 2, 3)
def test_an_error_is_raised_by_wait_and_ends_the_later_jobs(t):
    def fail(transport):
        raise ZeroDivisionError("planted")

    background = Background(t)
    good = background.submit(ring.all_reduce, np.array([1]))
    bad = background.submit(fail)
    later = background.submit(ring.all_reduce, np.array([1]))
    assert good.wait() == t.size
    with pytest.raises(ZeroDivisionError, match="planted"):
        bad.wait()
    with pytest.raises(RuntimeError, match="earlier background job failed") as caught:
        later.wait()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    background.close()


@ranks(1, 2)
def test_closing_waits_refuses_more_and_raises_what_nobody_saw(t):
    background = Background(t)
    x, y = np.array([1]), np.array([1])
    background.submit(ring.all_reduce, x)
    background.submit(ring.all_reduce, y)
    background.close()
    assert x == y == t.size
    with pytest.raises(RuntimeError, match="closed"):
        background.submit(ring.all_reduce, x)

    unseen = Background(t)
    unseen.submit(lambda transport: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        unseen.close()


@ranks(1, 2, 3)
def test_messages_carry_the_label_of_whoever_submitted(t):
    ledger = Ledger(t)
    with Background(ledger) as background:
        with t.named("bucket 0"):
            first = background.submit(ring.all_reduce, np.zeros(6))
        second = background.submit(ring.all_reduce, np.zeros(6))
        first.wait()
        second.wait()
    assert ledger.count(label="bucket 0") == ledger.count(label="ring.all_reduce")
    assert {row.label for row in ledger.rows} <= {"bucket 0", "ring.all_reduce"}


def test_modelled_time_overlaps_work_with_communication():
    # The all-reduce takes 2 s of modelled time: 2(n-1)(alpha + 4 beta) with n=2, alpha=0, beta=1/4.
    def body(t, work):
        with Background(t) as background:
            job = background.submit(ring.all_reduce, np.zeros(2, "f4"))
            t.compute(work)
            job.wait()
        return t.time()

    for work in (0.5, 2.0, 5.0):
        assert simulate(2, body, work, alpha=0, beta=0.25) == [max(2.0, work)] * 2


def test_modelled_jobs_follow_one_another():
    # Submitted at 0 and at 0.5, 2 s each: done at 2 and 4. A third, submitted at 10, is done at 12.
    def body(t):
        times = []
        background = Background(t)
        one = background.submit(ring.all_reduce, np.zeros(2, "f4"))
        t.compute(0.5)
        two = background.submit(ring.all_reduce, np.zeros(2, "f4"))
        for job in (one, two):
            job.wait()
            times.append(t.time())
        t.compute(6.0)
        background.submit(ring.all_reduce, np.zeros(2, "f4")).wait()
        return [*times, t.time()]

    assert simulate(2, body, alpha=0, beta=0.25) == [[2, 4, 12]] * 2


def test_a_modelled_job_does_not_start_before_it_was_submitted():
    # The first runs from 0 to 2, the second was submitted at 5, when the caller ran ahead.
    def body(t):
        background = Background(t)
        background.submit(ring.all_reduce, np.zeros(2, "f4"))
        t.compute(5.0)
        background.submit(ring.all_reduce, np.zeros(2, "f4")).wait()
        return t.time()

    assert simulate(2, body, alpha=0, beta=0.25) == [7.0] * 2


def test_an_unwaited_error_still_fails_the_simulation():
    def body(t):
        t.spawn(lambda: 1 / 0)

    with pytest.raises(RankFailed, match="rank 0: ZeroDivisionError"):
        simulate(2, body)


@ranks(2)
def test_no_thread_is_left_behind(t):
    before = set(threading.enumerate())  # under MPI, those of other tests' transports, too
    with Background(t) as background:
        background.submit(ring.all_reduce, np.zeros(3)).wait()
    naive.all_reduce(t, np.zeros(1))
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert set(threading.enumerate()) <= before
