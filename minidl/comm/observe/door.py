"""A socket that accepts only callers that know a token. Then both sides send lines of JSON.

    listener   door = Door(token)                   on the loopback address by default
               select([*door.sockets(), ...], ..., door.patience_s())
               for lines in door.callers(): ...     connections with a right proof
    caller     lines, _ = call(addresses, proof(token, me, 0), timeout_s, say="state?")

A caller sends a proof of 97 bytes, then lines of JSON. The proof has these parts:

    8b1f.. (16)   0000.. (16)   3fa9.. (64)   \\n
    the caller    its call 0    HMAC-SHA256 of the first two parts; the token is the key

Any program may connect. The door checks the proof before it parses any other byte. A connection is
a stranger until it has sent a right proof. The door keeps at most SEATS strangers, each for at most
KNOCK_S seconds. The door closes and counts these strangers:

    a first line without a proof   closed at its first newline, or after 97 bytes
    no bytes, or one per second    closed after KNOCK_S seconds
    a thousand connections         if there are more than SEATS strangers, the oldest is closed
    the proof of an earlier call   closed: its number was used before

No function here waits for a stranger, because `select` watches the stranger's socket together with
all other sockets. minidl's callers send the proof right after they connect, so the door lets them
in at once.

This file imports nothing from minidl, because cli/rank.py uses it before it imports anything else.

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
KNOCK_S = 3.0  # seconds in which a caller must send its whole proof; on one host it takes 1 ms
SEATS = 64  # the limit for connections without a right proof; a process can have 1024 open files
WINDOW = 64  # the last 64 calls of a process may arrive in any order; an older call is refused
LINE_BYTES = 1 << 22  # the longest line; the state of a rank with a thousand peers has 200 kB
CLOSED = "has closed"
ANSWER_S = 1.0  # the longest wait for an answer; an idle Python answers in 1 ms, a busy one in 6 ms


class Door:
    """A socket that accepts only callers that know the token.

    token: the secret that callers must know. one_host: if True, the door listens only on the
    loopback address. n_turned_away: the number of connections that were closed, because they had
    not sent a right proof."""

    def __init__(self, token, one_host=True, backlog=1024):
        self.listener = socket.create_server(("127.0.0.1" if one_host else "", 0), backlog=backlog)
        self.listener.setblocking(False)
        self.n_turned_away = 0
        self._token = token
        self._strangers = {}  # connection -> (the bytes that it has sent, when it will be closed)
        self._numbers = {}  # caller -> the numbers of its last calls

    def sockets(self):
        """Returns the sockets that `select` must watch. If `select` finds that one of them is
        readable, call callers()."""
        return [self.listener, *self._strangers]

    def patience_s(self):
        """Returns the timeout for `select`: the seconds until the first stranger must be closed.
        Returns None if there are no strangers."""
        if not self._strangers:
            return None
        first = min(until for _, until in self._strangers.values())
        return max(0.0, first - time.monotonic())

    def callers(self):
        """Returns a list of Lines: the connections that have sent a right proof since the last call
        of callers(). Never waits."""
        for _ in range(SEATS):
            try:
                connection = self.listener.accept()[0]
            except BlockingIOError:
                break
            except OSError:  # this process can open no more files, or the door is closed
                time.sleep(0.01)
                break
            connection.setblocking(False)
            self._strangers[connection] = b"", time.monotonic() + KNOCK_S
        let_in = [connection for connection in list(self._strangers) if self._knows(connection)]
        while len(self._strangers) > SEATS:
            # Closes the oldest stranger. Callers with a right proof are no longer strangers.
            self._turn_away(next(iter(self._strangers)))
        return [Lines(connection) for connection in let_in]

    def _knows(self, connection):
        """Returns True if the connection has sent a right proof. Closes the connection if it has
        ended, has sent a wrong proof or a newline too early, or has taken longer than KNOCK_S
        seconds."""
        shown, until = self._strangers[connection]
        try:
            more = connection.recv(PROOF_BYTES - len(shown))  # reads no byte after the proof
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
        """Accepts no connection from now on. Wakes a thread that waits in `select`."""
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)

    def close(self):
        for each in (self.listener, *self._strangers):
            each.close()


class Lines:
    """Lines of JSON on one connection, in both directions. `select` accepts this object.

    over: "" while the connection works. After its end, `over` is a text with the reason. Either the
    other side closed the connection, or it sent a line that is too long or is not a JSON object.
    Such a line ends only this connection."""

    def __init__(self, connection):
        connection.settimeout(ANSWER_S)
        self.connection, self._begun = connection, bytearray()
        self.over = ""

    def fileno(self):
        return self.connection.fileno()

    def say(self, **line):
        """Sends a JSON object. Raises OSError if the other side has closed the connection, or does
        not read for ANSWER_S seconds."""
        self.connection.sendall(json.dumps(line).encode() + b"\n")

    def heard(self):
        """Returns a list of the JSON objects that have come, one for each complete line. Call this
        method when `select` has returned this connection. Otherwise heard() may wait for ANSWER_S
        seconds."""
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
        """Waits for one line, and returns its object. Raises TimeoutError after ANSWER_S seconds,
        and ValueError if the connection has ended."""
        until = time.monotonic() + ANSWER_S
        while not self.over:
            self.connection.settimeout(max(1e-3, until - time.monotonic()))
            if objects := self.heard():
                return objects[0]
            if time.monotonic() >= until:
                raise TimeoutError(f"wanted an answer within {ANSWER_S:g} s; got none")
        raise ValueError(self.over)

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def parse(line):
    """Returns the JSON object in a line, a dict. Raises ValueError if there is none."""
    try:
        value = json.loads(line)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("the line is not a JSON object")
    return value


def new_token():
    """Returns a new secret: 32 hexadecimal digits."""
    return secrets.token_hex(16)


def new_caller():
    """Returns a new name, 16 hexadecimal digits, for a process that makes calls."""
    return secrets.token_hex(8)


def proof(token, caller, number):
    """Returns the proof that a caller knows the token: 97 bytes, for one call.

    caller: the name of this process, from new_caller(). number: 0 for the first call of this
    process, 1 for the second call, and so on."""
    return _signed(token, f"{caller}{number:016x}".encode())


def _signed(token, text):
    return text + hmac.new(token.encode(), text, hashlib.sha256).hexdigest().encode() + b"\n"


def call(addresses, shown, timeout_s, **line):
    """Connects, and sends a proof and one line. Returns (the Lines of the connection, the address
    that worked).

    addresses: [(host, port)], tried one after another. shown: the result of `proof`. line: the
    JSON object to send, as keyword arguments. Raises the OSError of the last address if no address
    works."""
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
