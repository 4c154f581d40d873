"""The page and the real one: the same results, state and errors."""

import pytest

from minidl.comm import Ledger, rpc
from minidl.plain import rpc as plain
from tests.conftest import ranks


def offered():
    """Functions of rank 0, with a state of their own."""
    seen = []

    def describe(*args):
        seen.append(list(args))
        return {"args": list(args), "text": "ä" * len(args)}

    def keep(x):
        seen.append(x)
        return len(seen)

    def divide(a, b):
        return a / b
    return {"describe": describe, "keep": keep, "divide": divide}, seen


CALLS = [("describe", 1, "x", [2.5, None]), ("divide", 7, 2), ("describe",), ("divide", 1, 0),
         ("missing", 3), ("divide", 1, 4)]


def by_page(t):
    functions, _ = offered()
    if t.rank == 0:
        return plain.serve(t, functions, range(1, t.size))
    found = []
    for name, *args in CALLS:
        try:
            found.append(plain.call(t, 0, name, *args))
        except RuntimeError as error:
            found.append("ZeroDivisionError" in str(error) or "an error")
    plain.stop(t, 0)
    return found


def by_real(t):
    functions, _ = offered()
    found = []
    with rpc.Service(t, **functions) as service:
        for name, *args in CALLS if t.rank else ():
            try:
                found.append(service.call(0, name, *args).wait())
            except rpc.RemoteError as error:
                found.append("ZeroDivisionError" in str(error) or "an error")
    return found or None


@ranks(1, 2, 3, 4, 5, 8)
def test_results_and_errors_are_the_real_ones(t):
    got = by_page(t)
    assert got == by_real(t)
    if t.rank:
        assert got[1] == 3.5 and got[3] is True and got[4] == "an error"


@ranks(2, 3, 5)
def test_a_server_takes_its_clients_in_turn_and_a_call_is_two_messages(t):
    """Each message is two arrays: a length, and the bytes."""
    functions, seen = offered()
    if t.rank == 0:
        plain.serve(t, functions, range(1, t.size))
        assert seen == [10 * i + rank for i in range(3) for rank in range(1, t.size)]
        return
    ledger, n_clients = Ledger(t), t.size - 1
    for i in range(3):
        assert plain.call(ledger, 0, "keep", 10 * i + t.rank) == n_clients * i + t.rank
    assert ledger.messages_sent == ledger.messages_received == 2 * 3
    plain.stop(t, 0)


@ranks(2)
def test_the_error_names_the_function_and_the_rank(t):
    if t.rank == 0:
        plain.serve(t, {}, [1])
        return
    with pytest.raises(RuntimeError, match="lost on rank 0"):
        plain.call(t, 0, "lost")
    plain.stop(t, 0)
