"""Remote calls: right results and errors, in order, without locks, and an end for everybody."""

import pickle
import re
import traceback

import numpy as np
import pytest

from minidl.comm import framing, objects, rpc, simulate, tree
from minidl.comm.labels import current_label
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.scheduler import RankFailed
from tests.conftest import ranks


def message_bytes(value):
    """Of the header and the body that carry `value`."""
    return framing.HEADER_BYTES + len(objects.pack(value))


@ranks(1, 2, 3, 4, 5, 8)
def test_a_call_runs_there_with_the_arguments_from_here(t):
    def describe(*args, **kwargs):
        return t.rank, args, kwargs

    with rpc.Service(t, describe=describe) as service:
        futures = [service.call(r, "describe", t.rank, "x", key=[r]) for r in range(t.size)]
        for r, future in enumerate(futures):
            assert future.wait() == (r, (t.rank, "x"), {"key": [r]})
            assert future.done() and future.wait() == future.wait()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "?", "c16"])
@ranks(1, 2, 3, 4)
def test_arrays_of_any_shape_arrive_whole_writable_and_their_own(t, dtype):
    arrays = [np.arange(n).astype(dtype) for n in (0, 1, 7)]
    arrays += [np.arange(24).astype(dtype).reshape(2, 3, 4)[:, ::2], np.array(1, dtype)]

    def echo(got):
        for array in got:
            assert array.flags.writeable and array.flags.aligned
        kept = [array.copy() for array in got]
        for array in got:
            array[...] = 0
        return kept

    service = rpc.Service(t, echo=echo)
    with service:
        future = service.call((t.rank + 1) % t.size, "echo", arrays)
        arrays[2][:] = 9  # copied when the call was made
        got = future.wait()
        for sent, came in zip(arrays[:2] + arrays[3:], got[:2] + got[3:], strict=True):
            assert came.dtype == dtype and came.shape == sent.shape and (came == sent).all()
            assert came.flags.writeable and came.flags.aligned
        assert (got[2] == np.arange(7).astype(dtype)).all()


@ranks(2, 3, 4, 8)
def test_each_rank_keeps_its_own_state_behind_its_own_functions(t):
    # A parameter server: no lock, and no update is lost.
    weights = np.zeros(5)

    def push(g):
        weights.__isub__(g)

    offered = {"push": push, "pull": lambda: weights} if t.rank == 0 else {}
    with rpc.Service(t, **offered) as service:
        if t.rank:
            for step in range(5):
                service.call(0, "push", np.full(5, t.rank * 10.0**step)).wait()
        tree.barrier(t)  # collectives go on beside the service
        assert (service.call(0, "pull").wait() == -11111 * t.size * (t.size - 1) / 2).all()
    assert (weights != 0).all() == (t.rank == 0)


@ranks(2, 3, 4)
def test_calls_of_one_rank_run_in_the_order_in_which_it_made_them(t):
    seen = []
    with rpc.Service(t, see=lambda src, i: seen.append((src, i))) as service:
        for i in range(10):
            for r in range(t.size):
                service.call(r, "see", t.rank, i)
    for src in range(t.size):  # the block has ended: everything has run
        assert [i for s, i in seen if s == src] == list(range(10))


@ranks(1, 2, 3, 4)
def test_an_error_comes_back_with_the_remote_traceback(t):
    def divide(a, b):
        return a // b

    other = (t.rank + 1) % t.size
    with rpc.Service(t, divide=divide) as service:
        future = service.call(other, "divide", 1, 0)
        for _ in range(2):
            with pytest.raises(rpc.RemoteError) as caught:
                future.wait()
        text = str(caught.value)
        assert text.startswith(
            f"rank {t.rank}: divide() on rank {other} raised ZeroDivisionError: "
        )
        assert "return a // b" in caught.value.remote_traceback and caught.value.rank == other
        assert caught.value.remote_traceback.rstrip() in text and "/rpc.py" not in text
        assert service.call(other, "divide", 7, 2).wait() == 3  # it goes on serving


@ranks(1, 2, 3)
def test_errors_of_the_call_itself(t):
    def wrong():
        return lambda: None  # cannot be pickled

    other = (t.rank + 1) % t.size
    with rpc.Service(t, wrong=wrong, leave=lambda: exit(3)) as service:
        with pytest.raises(rpc.RemoteError, match=rf"rank {other} offers wrong, leave; got a call"):
            service.call(other, "rong").wait()
        with pytest.raises(rpc.RemoteError, match="raised .*(pickle|get) local object"):
            service.call(other, "wrong").wait()
        with pytest.raises(rpc.RemoteError, match="raised TypeError: .* positional argument"):
            service.call(other, "wrong", 1).wait()
        with pytest.raises(rpc.RemoteError, match="raised SystemExit: 3"):
            service.call(other, "leave").wait()
        with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
            service.call(other, "wrong", lambda: None)
        with pytest.raises(ValueError, match=f"must be a rank of this group.*got {t.size}"):
            service.call(t.size, "wrong")
    with pytest.raises(RuntimeError, match="rank . outside of it"):
        service.call(other, "wrong")
    with pytest.raises(RuntimeError, match="serves only one `with` block"):
        service.__enter__()


class Unmakable:
    """Can be pickled, but not made again."""

    def __reduce__(self):
        return int, ("not a number",)


@ranks(1, 2, 3)
def test_a_value_that_cannot_be_made_again_is_the_callers_error(t):
    with rpc.Service(t, same=lambda x: x, make=Unmakable) as service:
        other = (t.rank + 1) % t.size
        with pytest.raises(rpc.RemoteError, match="raised ValueError: invalid literal"):
            service.call(other, "same", Unmakable()).wait()
        with pytest.raises(ValueError, match="invalid literal"):
            service.call(other, "make").wait()
        assert service.call(other, "same", 1).wait() == 1  # both go on serving


@ranks(1, 2, 3, 4, 5)
def test_calls_may_go_round_in_circles(t):
    def hop(left):
        if not left:
            return []
        return [t.rank] + service.call((t.rank + 1) % t.size, "hop", left - 1).wait()

    service = rpc.Service(t, hop=hop)
    with service:
        path = service.call(t.rank, "hop", 2 * t.size + 1).wait()
        assert path == [(t.rank + i) % t.size for i in range(2 * t.size + 1)]


@ranks(2, 3, 4)
def test_a_served_function_is_interrupted_only_where_it_waits(t):
    inside = []

    def work(deep):
        assert not inside
        inside.append(1)
        n = sum(range(1000))
        inside.pop()
        return n if not deep else service.call(0, "work", False).wait()

    service = rpc.Service(t, work=work)
    with service:
        futures = [service.call(r, "work", True) for r in range(t.size) for _ in range(5)]
        assert [f.wait() for f in futures] == [499500] * len(futures)


@ranks(2, 3, 4)
def test_a_call_returns_after_the_calls_that_it_made(t):
    seen = []

    def spread():
        for r in range(t.size):
            service.call(r, "note", t.rank)  # nobody waits for these

    service = rpc.Service(t, note=seen.append, spread=spread)
    with service:
        service.call((t.rank + 1) % t.size, "spread")
    assert sorted(seen) == list(range(t.size))


def test_a_reply_leaves_after_the_calls_that_were_made_for_it():
    def body(t):
        def spread():
            service.call(2, "note")  # nobody waits for it

        service = rpc.Service(t, note=lambda: t.compute(5.0), spread=spread)
        with service:
            if t.rank == 0:
                service.call(1, "spread").wait()
                return t.time()

    assert simulate(3, body)[0] > 5.0


@ranks(2, 3, 4)
def test_an_error_that_nobody_waits_for_is_raised_at_the_end(t):
    def bad():
        raise ValueError("from afar")

    def careless():
        service.call(0, "bad")

    with pytest.raises(rpc.RemoteError, match="bad.. on rank 0 raised ValueError: from afar"):
        service = rpc.Service(t, bad=bad)
        with service:
            service.call(0, "bad")
    service = rpc.Service(t, bad=bad, careless=careless)
    with service:
        with pytest.raises(rpc.RemoteError, match=r"careless\(\) on rank 1 raised .*RemoteError"):
            service.call(1, "careless").wait()


@ranks(2, 3, 4)
def test_ranks_that_have_nothing_to_ask_serve_until_all_are_done(t):
    with rpc.Service(t, rank=lambda: t.rank) as service:
        if t.rank == t.size - 1:
            t.compute(1.0)
            assert [service.call(r, "rank").wait() for r in range(t.size)] == list(range(t.size))


@ranks(2, 3, 4)
def test_a_rank_that_left_by_an_exception_fails_the_calls_to_it(t):
    def slow():
        service.call(1, "pause").wait()  # is never answered: rank 1 has left

    left = "because that rank left its Service by an exception"
    try:
        service = rpc.Service(t, pause=lambda: None, slow=slow)
        with service:
            if t.rank == 1:
                raise KeyError("lost")
            while True:  # until the news is here
                try:
                    service.call(1, "pause").wait()
                except rpc.RemoteError as error:
                    assert left in str(error) and error.rank == 1
                    assert "KeyError: 'lost'" in error.remote_traceback
                    break
            with pytest.raises(rpc.RemoteError, match=left):  # at once, and again
                service.call(1, "pause").wait()
            with pytest.raises(rpc.RemoteError, match=left):
                service.call(0, "slow").wait()
    except KeyError:
        assert t.rank == 1
        with pytest.raises(RuntimeError, match="rank . outside of it"):
            service.call(0, "pause")


@ranks(2, 3, 4)
def test_a_call_that_was_running_when_its_rank_left_fails_too(t):
    started, gone = t.event(), t.event()

    def slow():
        started.set()
        gone.wait()
        return "too late"

    try:
        with rpc.Service(t, slow=slow) as service:
            if t.rank == 1:
                started.wait()
                raise KeyError("lost")
            if t.rank == 0:
                with pytest.raises(rpc.RemoteError, match="because that rank left its Service"):
                    service.call(1, "slow").wait()
    except KeyError:
        assert t.rank == 1
        gone.set()


@ranks(1, 2, 3, 4)
def test_bytes_and_messages_equal_the_formula(t):
    ledger = Ledger(t)
    other = (t.rank + 1) % t.size
    g = np.arange(10.0)
    with rpc.Service(ledger, twice=lambda x, n: [x, x * n]) as service:
        service.call(other, "twice", g, n=2).wait()
    calls, replies = ledger.count(label="rpc.call"), ledger.count(label="rpc.reply")
    left = ledger.count(label="rpc.left")
    assert calls.bytes_sent == message_bytes(("twice", (g,), {"n": 2}))
    assert replies.bytes_sent == message_bytes([g, g * 2])
    # each a header and a body
    assert (calls.messages_sent, replies.messages_sent, left.messages_sent) == (2, 2, 2 * t.size)
    assert left.bytes_sent == t.size * message_bytes(None)
    received = ledger.count(label="rpc.serve")
    assert received.bytes_received == ledger.bytes_received
    assert received.messages_received == ledger.messages_received == 2 * (t.size + 2)


@ranks(2, 3, 4, mpi=False)
def test_on_a_subgroup_and_two_services_at_once(t):
    group = t.subgroup([t.size - 1, 0])
    with rpc.Service(t, who=lambda: ("all", t.rank)) as everyone:
        if group is not None:
            with rpc.Service(group, who=lambda: ("two", group.rank)) as two:
                assert two.call(1, "who").wait() == ("two", 1)
                assert everyone.call(1, "who").wait() == ("all", 1)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_sends_that_wait_for_their_receives_do_not_lock(n):
    def body(t):
        def echo(x):
            return service.call((t.rank + 1) % n, "last", x).wait()

        service = rpc.Service(t, echo=echo, last=lambda x: x)
        with service:
            futures = [service.call(r, "echo", np.ones(100)) for r in range(n) for _ in range(3)]
            assert all((future.wait() == 1).all() for future in futures)

    simulate(n, body, rendezvous_bytes=0)


def test_time_equals_the_formula():
    alpha, beta = 2.0**-10, 2.0**-20  # sums of them are exact in floating point
    x = np.zeros(1000)

    def body(t):
        with rpc.Service(t, head=lambda x: x[:10]) as service:
            if t.rank == 0:
                service.call(1, "head", x).wait()
                return t.time()

    there = message_bytes(("head", (x,), {}))
    back = message_bytes(x[:10])
    time_s = 2 * alpha + (there + back) * beta
    assert simulate(2, body, alpha=alpha, beta=beta)[0] == time_s and there > back


def test_messages_of_a_served_function_have_their_own_label():
    labels = []

    def body(t):
        with rpc.Service(t, label=lambda: labels.append(current_label())) as service:
            service.call(0, "label")

    simulate(2, body)
    assert labels == ["point-to-point"] * 2


def test_an_uncaught_exception_in_the_block_names_its_rank():
    def body(t):
        with rpc.Service(t, pull=lambda: 1) as service:
            if t.rank == 2:
                raise ValueError("here")
            service.call(2, "pull").wait()

    with pytest.raises(RankFailed) as caught:
        simulate(3, body)
    text = "".join(traceback.format_exception(caught.value))
    assert re.search("rank 2: ValueError: here|KeyError|rank 2 raised", text)


@ranks(2, 3)
def test_a_call_with_a_time_limit_gives_up_and_may_be_waited_for_again(t):
    def slow():
        service_t.pause(0.3)
        return 7

    service_t = t
    with rpc.Service(t, slow=slow) as service:
        if t.rank == 1:
            future = service.call(0, "slow")
            with pytest.raises(TimeoutError, match=r"rank 1: wanted the result of slow\(\) on"):
                future.wait(timeout_s=0.05)
            assert future.wait(timeout_s=20) == 7 and future.wait() == 7


@ranks(2)
def test_calls_nested_without_end_are_an_error_not_a_hang(t):
    def ping(depth):
        return service.call(1 - t.rank, "ping", depth + 1).wait()

    service = rpc.Service(t, ping=ping)
    with service:
        if t.rank == 0:
            with pytest.raises(rpc.RemoteError, match="at most 50 nested calls; got 51"):
                service.call(1, "ping", 0).wait()
