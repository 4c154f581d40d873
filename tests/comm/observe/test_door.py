"""A door opens for who knows the token, once for each proof, and waits for nobody else."""

import itertools
import select
import socket
import threading
import time

import pytest

from minidl.comm.observe import door
from minidl.comm.observe.door import Door, Lines

ME = "0123456789abcdef"


@pytest.fixture
def at():
    opened = Door("secret")
    yield opened
    opened.close()


def connect(at, data=b""):
    connection = socket.create_connection(at.listener.getsockname())
    connection.sendall(data)
    return connection


def let_in(at, wait_s=0.2):
    """All that come in within this time."""
    found, until = [], time.monotonic() + wait_s
    while (left := until - time.monotonic()) > 0:
        select.select(at.sockets(), [], [], min(left, at.patience_s() or left))
        found += at.callers()
    return found


def has_ended(connection):
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_who_knows_the_token_comes_in_and_is_heard(at):
    lines, _ = door.call([at.listener.getsockname()], door.proof("secret", ME, 0), 5.0, say="a")
    (heard,) = let_in(at)
    assert heard.answer() == {"say": "a"}
    heard.say(say="b")
    assert lines.answer() == {"say": "b"}
    assert at.n_turned_away == 0
    for each in (heard, lines):
        each.close()


PROOF = door.proof("secret", ME, 7)
WRONG = {
    "another token": door.proof("secreT", ME, 7),
    "another caller": b"1" + PROOF[1:],
    "another number": PROOF[:31] + b"8" + PROOF[32:],
    "capital letters": PROOF.upper(),
    "no end of a line": PROOF[:-1] + b"x",
    "bytes that are no text": b"\xff" * door.PROOF_BYTES,
    "HTTP": b"GET / HTTP/1.0\r\n\r\n",
    "the token itself": b'{"token": "secret", "say": "born"}\n',
    "deep JSON": b"[" * 100_000,
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_whatever_else_comes_is_turned_away_and_counted(at, data):
    with connect(at, data) as stranger:
        assert let_in(at) == [] and has_ended(stranger)
    assert at.n_turned_away == 1 and at.sockets() == [at.listener]


def test_a_proof_opens_once(at):
    with connect(at, PROOF) as first, connect(at, PROOF) as again:
        (lines,) = let_in(at)
        assert lines.connection.getpeername() == first.getsockname() and has_ended(again)
        lines.close()


@pytest.mark.parametrize("numbers, n_in", [
    ([0, 1, 2], 3), ([2, 0, 1], 3), ([5, 5], 1), ([0, 1, 0], 2),
    ([door.WINDOW, 0], 1),  # too long ago to know
    ([door.WINDOW, 1], 2)])
def test_calls_may_come_in_another_order_but_once_each(at, numbers, n_in):
    for number in numbers:
        connect(at, door.proof("secret", ME, number)).close()
        time.sleep(0.01)
    found = let_in(at)
    assert len(found) == n_in and at.n_turned_away == len(numbers) - n_in
    for lines in found:
        lines.close()


@pytest.mark.parametrize("each_s", [None, 0.02])
def test_who_is_silent_or_slow_is_turned_away_in_time(at, each_s, monkeypatch):
    monkeypatch.setattr(door, "KNOCK_S", 0.3)
    start = time.monotonic()
    with connect(at) as stranger:
        for byte in itertools.count():
            let_in(at, each_s or 0.05)
            assert time.monotonic() - start < 2
            if at.n_turned_away:
                break
            if each_s:
                stranger.sendall(PROOF[byte:byte + 1])  # in time it would be right
        assert 0.3 <= time.monotonic() - start < 1.0 and has_ended(stranger)


def test_a_caller_comes_in_at_once_among_strangers_who_say_nothing(at):
    """Red before: each of them was waited for, a second each."""
    strangers = [connect(at) for _ in range(3 * door.SEATS)]
    with connect(at, PROOF):
        start, found = time.monotonic(), []
        while not found:
            found = at.callers()
        assert time.monotonic() - start < 0.5
    assert len(at.sockets()) <= door.SEATS + 1
    assert at.n_turned_away == 2 * door.SEATS, "the oldest"
    assert has_ended(strangers[0])
    for each in (*strangers, *found):
        each.close()


@pytest.mark.parametrize("data, objects, why", [
    (b'{"a": 1}\n{"a"', [{"a": 1}], ""),
    (b'{"a": 1}\n[1]\n{"a": 2}\n', [{"a": 1}], "not ours: the line is not a JSON object"),
    (b"[" * 50_000 + b"\n", [], "not ours"),  # nested too deep, or (Python 3.14) not closed
    (b"\xff\xfe\n", [], "not ours"),
    (b"1" * 5000 + b"\n", [], "not ours"),
], ids=["half", "list", "deep", "no text", "a large number"])
def test_lines_end_at_the_first_that_is_not_ours(data, objects, why):
    ours, theirs = socket.socketpair()
    with Lines(ours) as lines, theirs:
        theirs.sendall(data)
        assert lines.heard() == objects
        assert why in lines.over and bool(why) == bool(lines.over)


def test_a_line_that_does_not_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(door, "LINE_BYTES", 1000)
    ours, theirs = socket.socketpair()
    with Lines(ours) as lines, theirs:
        theirs.sendall(b"a" * 1001)
        assert lines.heard() == [] and lines.over == "has sent a line of more than 1000 bytes"


def test_an_answer_that_takes_a_while_is_waited_for():
    ours, theirs = socket.socketpair()
    with Lines(ours) as lines, theirs:
        later = threading.Timer(0.1, theirs.sendall, [b'{"a": 1}\n'])
        later.start()
        assert lines.answer() == {"a": 1}
        later.join()


def test_an_answer_has_its_time_however_it_comes(monkeypatch):
    """Red before: a byte now and then, and one waited for ever."""
    monkeypatch.setattr(door, "ANSWER_S", 0.2)
    ours, theirs = socket.socketpair()
    with Lines(ours) as lines, theirs:
        theirs.sendall(b'{"a": ')
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            lines.answer()
        assert time.monotonic() - start < 1.0
