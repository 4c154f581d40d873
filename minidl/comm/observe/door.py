"""A listening socket that hears only callers who know its token, and lines of JSON with them.

    listener   door = Door(token)                   on the loopback address, unless told otherwise
               select([*door.sockets(), ...], ..., door.patience_s())
               for lines in door.callers(): ...     those that have shown that they know the token
    caller     lines, _ = call(addresses, proof(token, me, 0), timeout_s, say="state?")

What a caller sends: a proof of 97 bytes, then lines of JSON.

    8b1f.. (16)   0000.. (16)   3fa9.. (64)   \\n
    who calls     its call 0    HMAC-SHA256 of the two before, by the token

Any program may connect. Nothing that it sends is parsed before its proof is checked, and each of
these ends by itself, is counted and costs at most KNOCK_S seconds of one of SEATS places:

    another first line             turned away at its first newline, or after 97 bytes
    silence, or a byte a second    turned away after KNOCK_S
    a thousand connections         the oldest of more than SEATS is turned away
    the proof of a former call     its number has been seen

No call here waits for a stranger: those who wait stand in `select` beside everything else. A proof
comes together with the connection, so a caller of ours does not wait either.

This file imports nothing of minidl: cli/rank.py runs it before anything else is imported.

Source: RFC 2104 (HMAC); RFC 4303, 3.4.3 (a window of numbers against replays)
Test: tests/comm/observe/test_door.py, tests/cli/test_strangers.py
Used by: side_channel.py, lookout.py, cli/supervisor.py, cli/rank.py
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import time

PROOF_BYTES = 16 + 16 + 64 + 1
KNOCK_S = 3.0  # from the connection to the last byte of its proof; on one host it takes 1 ms
SEATS = 64  # connections that have not proved anything; a process may hold 1024 files
WINDOW = 64  # the last calls of a process may arrive in any order; an older number is refused
LINE_BYTES = 1 << 22  # the state of a rank that talks to a thousand others has 200 kB
CLOSED = "has closed"
ANSWER_S = 1.0  # an idle interpreter answers in a millisecond, one that computes in six


class Door:
    """One listening socket. n_turned_away: connections that did not prove anything."""

    def __init__(self, token, one_host=True, backlog=1024):
        self.listener = socket.create_server(("127.0.0.1" if one_host else "", 0), backlog=backlog)
        self.listener.setblocking(False)
        self.n_turned_away = 0
        self._token = token
        self._strangers = {}  # connection -> (what it has sent, until when it may go on)
        self._numbers = {}  # who has called -> the numbers of its last calls

    def sockets(self):
        """For `select`: when one of them is readable, ask callers()."""
        return [self.listener, *self._strangers]

    def patience_s(self):
        """Returns the timeout for `select`, in seconds: until the first proof is late. None if no
        proof is awaited."""
        if not self._strangers:
            return None
        first = min(until for _, until in self._strangers.values())
        return max(0.0, first - time.monotonic())

    def callers(self):
        """Returns the Lines of those that have been let in since the last call. Never waits."""
        for _ in range(SEATS):
            try:
                connection = self.listener.accept()[0]
            except BlockingIOError:
                break
            except OSError:  # this process has no file left, or the door is closed
                time.sleep(0.01)
                break
            connection.setblocking(False)
            self._strangers[connection] = b"", time.monotonic() + KNOCK_S
        let_in = [connection for connection in list(self._strangers) if self._knows(connection)]
        while len(self._strangers) > SEATS:
            self._turn_away(next(iter(self._strangers)))  # a caller of ours would be in
        return [Lines(connection) for connection in let_in]

    def _knows(self, connection):
        """Whether the connection has proved by now that it knows the token."""
        shown, until = self._strangers[connection]
        try:
            more = connection.recv(PROOF_BYTES - len(shown))  # what follows is for Lines
        except BlockingIOError:
            more = None
        except OSError:
            more = b""
        shown += more or b""
        self._strangers[connection] = shown, until
        if len(shown) == PROOF_BYTES and self._is_proof(shown):
            del self._strangers[connection]
            return True
        if more == b"" or b"\n" in shown or len(shown) == PROOF_BYTES or time.monotonic() >= until:
            self._turn_away(connection)
        return False

    def _is_proof(self, shown):
        if not hmac.compare_digest(shown, _signed(self._token, shown[:32])):
            return False
        caller, number = shown[:16], int(shown[16:32], 16)
        seen = self._numbers.get(caller, set())
        if number in seen or number <= max(seen, default=0) - WINDOW:
            return False
        newest = max(seen | {number})
        self._numbers[caller] = {n for n in seen | {number} if n > newest - WINDOW}
        return True

    def _turn_away(self, connection):
        del self._strangers[connection]
        connection.close()
        self.n_turned_away += 1

    def refuse(self):
        """Accept nobody from now on; wakes a thread that sleeps in `select` on the listener."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)

    def close(self):
        for each in (self.listener, *self._strangers):
            each.close()


class Lines:
    """Lines of JSON on one connection, both ways; it may stand in `select`.

    over: why nothing more comes, once that is so: its end, or a line that is too long or is no JSON
    object. Such a line ends the connection, and nothing else."""

    def __init__(self, connection):
        connection.settimeout(ANSWER_S)
        self.connection, self._begun = connection, bytearray()
        self.over = ""

    def fileno(self):
        return self.connection.fileno()

    def say(self, **line):
        """Raises OSError if the other side is gone, or does not read for ANSWER_S."""
        self.connection.sendall(json.dumps(line).encode() + b"\n")

    def heard(self):
        """Returns the objects of all lines that are here. For when `select` says that some are."""
        try:
            data = self.connection.recv(1 << 16)
        except TimeoutError:
            return []
        except OSError:
            data = b""
        if not data:
            self.over = CLOSED
            return []
        if b"\n" not in data:
            self._begun += data
            if len(self._begun) > LINE_BYTES:
                self.over = f"has sent a line of more than {LINE_BYTES} bytes"
            return []
        *lines, self._begun = (self._begun + data).split(b"\n")
        objects = []
        for line in lines:
            try:
                objects.append(parse(line))
            except ValueError as error:
                self.over = f"has sent a line that is not ours: {error}"
                break
        return objects

    def answer(self):
        """Returns the object of one line. Raises TimeoutError after ANSWER_S in all, ValueError."""
        until = time.monotonic() + ANSWER_S
        while not self.over:
            self.connection.settimeout(max(1e-3, until - time.monotonic()))
            if objects := self.heard():
                return objects[0]
            if time.monotonic() >= until:
                raise TimeoutError("no answer")
        raise ValueError(self.over)

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def parse(line):
    """Returns the JSON object in a line. Raises ValueError if there is none."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value


def new_token():
    return secrets.token_hex(16)


def new_caller():
    """Returns a name for a process that calls: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def proof(token, caller, number):
    """Returns the bytes that open the door with this token, once. number: 0, 1, 2, ..."""
    return _signed(token, f"{caller}{number:016x}".encode())


def _signed(token, text):
    return text + hmac.new(token.encode(), text, hashlib.sha256).hexdigest().encode() + b"\n"


def call(addresses, shown, timeout_s, **line):
    """Returns (the Lines of a connection on which a proof and one line were sent, the address that
    was reached).

    addresses: [(host, port)], tried one after another. Raises the last one's OSError."""
    error = ConnectionError("there is no address that others can reach")
    for address in addresses:
        try:
            connection = socket.create_connection(address, timeout=timeout_s)
        except OSError as refused:
            error = refused
            continue
        try:
            connection.sendall(shown + json.dumps(line).encode() + b"\n")
        except OSError:
            connection.close()
            raise
        return Lines(connection), address
    raise error
