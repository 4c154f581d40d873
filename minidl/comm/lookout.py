"""Where is every rank? Two threads per process that answer, and ask when its rank waits long.

    rank 0  main    recv from 1 ............. (in C, cannot speak)
            looks   every half second: still the same wait? after 1 s: ask all ranks
            answers <-- "state?"  --> counters, waits, the line where main is (waits.py)

The ranks talk over TCP, not MPI: a thread that sleeps in `select` costs nothing, while one that
polls MPI costs time and takes its locks; and a process that dies closes its sockets, which others
see at once. What the threads cost is in the README's figures.

    nobody of a set can go on, twice in a quarter second       deadlock: certain, ends now
    a rank waits `deadline_s` for one that computes            it has not arrived: ends then
    a connection closes without a word                         that process was killed: ends now

To end means: the report on stderr, then MPI_Abort. A rank that leaves in peace says so with its
last counters, so that those who still wait for it are known to wait in vain: `sys.exit(1)` on one
rank hangs nobody, under plain mpirun as well. The lowest rank concerned reports, others if it
cannot. The threads are daemons and keep no process alive.

Test: tests/mpi/test_watch_mpi.py   Used by: watch.py
"""

import atexit
import contextlib
import itertools
import json
import os
import platform
import secrets
import select
import socket
import sys
import threading
import time
from dataclasses import asdict

import numpy as np

from .waits import Need, State, Wait, cycle, describe, stuck

LOOK_S = 0.5  # between two looks at the own rank: two wake-ups a second are not measurable
SUSPECT_S = 1.0  # a wait this long is worth asking about
AGAIN_S = 0.25  # between the two looks that make a deadlock certain
ANSWER_S = 1.0  # an idle interpreter answers in a millisecond, one that computes in six


class Book:
    """What the rank's threads do now, written by them, read by the lookout. No locks: each entry is
    replaced whole, and a thread writes its own only."""

    def __init__(self):
        self.counters, self.waits = {}, {}
        self.last = None  # (label, (file, line)) of the last collective
        self._serials = itertools.count()

    def count(self, key):
        self.counters[key] = count = self.counters.get(key, 0) + 1
        return count

    def wait(self, needs, what, fn, *args, any_of=False):
        """fn(*args), which may wait. needs: [(rank, key, count)], or a function that lists them;
        what: (text, its arguments)."""
        me = threading.get_ident()
        self.waits[me] = (next(self._serials), needs, what, any_of)
        try:
            return fn(*args)
        finally:
            self.waits.pop(me, None)


class Lookout:
    """The two threads of one process. Collective: all of t's ranks make theirs at once."""

    def __init__(self, t, tag, deadline_s):
        self.book = Book()
        self._t, self.rank, self.ranks = t, t.world_rank, t.ranks
        self._deadline_s = float("inf") if deadline_s is None else deadline_s
        self._since = {}  # thread -> (serial of its wait, when the wait was first seen)
        self._words = {}  # rank -> its last State, said when it left
        self._over = False  # this rank leaves, or another has reported: no reports any more
        self._main = threading.main_thread().ident
        self._listen(tag)
        self._link()
        for work in (self._answers, self._looks):
            name = f"minidl {work.__name__[1:]}"
            threading.Thread(target=work, name=name, daemon=True).start()
        atexit.register(self._leave)
        for module, hook in ((sys, "excepthook"), (threading, "excepthook")):
            setattr(module, hook, self._before(getattr(module, hook)))

    # -- sockets: a line of JSON each way

    def _listen(self, tag):
        here = [platform.node(), _namespace()]
        at_home = all(place == here for place in share(self._t, here, tag))
        self._listener = socket.create_server(("127.0.0.1" if at_home else "", 0), backlog=128)
        addresses = ["127.0.0.1"] if at_home else _own_addresses()
        mine = [addresses, self._listener.getsockname()[1], secrets.token_hex(8)]
        everybody = share(self._t, mine, tag)
        # Rank 0's token opens every door; without it a stray connection is closed.
        self._token = everybody[0][2]
        self._doors = {
            rank: [(address, port) for address in addresses]
            for rank, (addresses, port, _) in zip(self.ranks, everybody, strict=True)
        }

    def _connect(self, rank, say, **more):
        """A connection to a rank's lookout on which one line was sent."""
        doors = self._doors[rank]
        for door in doors:
            try:
                connection = socket.create_connection(door, timeout=ANSWER_S)
                break
            except OSError:
                if door == doors[-1]:
                    raise
        self._doors[rank] = [door]
        line = {"token": self._token, "from": self.rank, "say": say, **more}
        connection.sendall(json.dumps(line).encode() + b"\n")
        return connection

    def _link(self):
        """A star: every rank holds a connection to the first, and each end sees the other die."""
        self._links = {}  # socket -> rank
        first = self.ranks[0]
        if self.rank != first:
            try:
                self._links[self._connect(first, "link")] = first
            except OSError as error:
                self._say(
                    f"watch: no TCP connection to rank {first} at {self._doors[first]} ({error}); "
                    "deadlines hold, but where other ranks are cannot be told"
                )

    def _say(self, text):
        sys.stdout.flush()
        sys.stderr.write(f"rank {self.rank}: {text}\n")
        sys.stderr.flush()

    # -- the thread that answers

    def _answers(self):
        while True:
            ready, _, _ = select.select([self._listener, *self._links], [], [])
            while select.select([self._listener], [], [], 0)[0]:  # words before ends of links
                try:
                    self._answer(self._listener.accept()[0])
                except OSError:  # the listener was closed: the process ends
                    return
                except ValueError:  # a stranger
                    pass
            for link in [link for link in ready if link in self._links]:
                self._lost(self._links.pop(link))

    def _answer(self, connection):
        connection.settimeout(ANSWER_S)
        line = json.loads(connection.makefile("rb").readline(1 << 24))
        if line["token"] != self._token:
            raise ValueError("another job's")
        if line["say"] == "link":
            self._links[connection] = line["from"]
            return
        with connection, contextlib.suppress(OSError):
            if line["say"] == "state?":
                connection.sendall(json.dumps(asdict(self.state())).encode() + b"\n")
            elif line["say"] == "ended":
                self._words[line["from"]] = _state(line["state"])
            elif line["say"] == "failing":  # it ends all ranks, and says why
                self._over = True

    def _lost(self, rank):
        """The connection to a rank has closed."""
        reporter = self.ranks[1] if rank == self.ranks[0] else self.ranks[0]
        if rank in self._words or self._over or self.rank != reporter:
            return
        # First the report: the launcher ends this process within milliseconds.
        self._say(
            f"watch: rank {rank} is gone without a word: killed by a signal, or out of memory? "
            f"The last collective that rank {self.rank} began was {self._last()}."
        )
        self._end()

    # -- the thread that looks

    def _looks(self):
        wanted = SUSPECT_S  # ask at 1, 2, 4, ... seconds of one wait
        while not self._over:
            time.sleep(LOOK_S)
            waited = self._longest()
            if waited < SUSPECT_S:
                wanted = SUSPECT_S
            elif waited >= min(wanted, self._deadline_s):
                wanted = max(wanted, waited) * 2
                self._look(waited)

    def _longest(self):
        """Seconds that a thread of this rank has been in one wait; also notes the new waits."""
        now, since = time.monotonic(), {}
        for thread, (serial, *_) in list(self.book.waits.items()):
            before, when = self._since.get(thread, (None, now))
            since[thread] = (serial, when if before == serial else now)
        self._since = since
        return max((now - when for _, when in since.values()), default=0.0)

    def _look(self, waited):
        states = self._ask_all()
        lost = stuck(states)
        if self.rank in lost:
            time.sleep(AGAIN_S)
            again = self._ask_all()
            if stuck(again) == lost and all(
                _serials(states[r]) == _serials(again[r]) for r in lost
            ):
                self._report_stuck(again, lost)
                return
        if waited >= self._deadline_s:
            self._report_late(states, waited)

    def _report_stuck(self, states, lost):
        path = cycle(states, lost)
        ended = states[path[-1]].ended
        what = "waits for rank {}, which has ended" if ended else "wait-for cycle"
        lines = [f"watch: deadlock: {in_words(lost)} can never go on.", describe(states)]
        arrows = " -> ".join(f"rank {rank}" for rank in path)
        lines.append(f"  {what.format(path[-1])}: {arrows}")
        self._report(lost, "\n".join(lines))

    def _report_late(self, states, waited):
        late = sorted(r for r, s in states.items() if s.computes_at or s.silent)
        who = in_words(late) if late else "nobody in particular: a very slow message?"
        lines = [
            f"watch: waited {waited:.0f} s (deadline_s {self._deadline_s:g}) for {who}.",
            describe(states),
        ]
        self._report([r for r, s in states.items() if s.waits], "\n".join(lines))

    def _report(self, concerned, text):
        """Say it and end all ranks; the others concerned give the lowest of them time to."""
        if self.rank != min(concerned):
            time.sleep(2 * SUSPECT_S)
        if not self._over:
            self._tell("failing")
            self._say(text)
            self._end()

    def _ask_all(self):
        return {rank: self._ask(rank) for rank in self.ranks}

    def _ask(self, rank):
        if rank == self.rank:
            return self.state()
        if rank in self._words:
            return self._words[rank]
        try:
            with self._connect(rank, "state?") as connection:
                return _state(json.loads(connection.makefile("rb").readline()))
        except TimeoutError:
            why = "does not answer: in C code that keeps the interpreter, or stopped by a signal"
        except (OSError, ValueError):
            if rank in self._words:  # it came meanwhile
                return self._words[rank]
            why = "cannot be reached: its process is gone"
        return State(rank, silent=why)

    def state(self, ended=False):
        """What this rank does now."""
        frames, now = sys._current_frames(), time.monotonic()
        listed = []
        for thread, (serial, needs, what, any_of) in sorted(self.book.waits.items()):
            seen, since = self._since.get(thread, (None, now))
            listed.append(
                Wait(
                    what[0].format(*what[1:]),
                    tuple(Need(*need) for need in (needs() if callable(needs) else needs)),
                    any_of,
                    "main" if thread == self._main else "a background thread",
                    _seen_at(frames.get(thread)),
                    serial,
                    now - since if seen == serial else 0.0,
                )
            )
        computes = not ended and self._main not in self.book.waits
        at = _seen_at(frames.get(self._main)) if computes else ""
        return State(self.rank, dict(self.book.counters), listed, at, self._last(), ended)

    def _last(self):
        if self.book.last is None:
            return "none"
        label, line = self.book.last
        return label + (f" at {spot(*line)}" if line else "")

    # -- the end

    def _tell(self, say, **more):
        """A line to all others; in a second at most."""
        until = time.monotonic() + 1.0
        for rank in self.ranks:
            if rank not in (self.rank, *self._words) and time.monotonic() < until:
                with contextlib.suppress(OSError):
                    self._connect(rank, say, **more).close()

    def _end(self):
        self._over = True
        self._t.abort()

    def _leave(self):
        """The program ends: from here on no other rank will get anything from it."""
        if not self._over:
            self._over = True
            self._tell("ended", state=asdict(self.state(ended=True)))
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that answers
        self._listener.close()

    def _before(self, hook):
        """An exception hook that first tells the others that it will end them, then does."""

        def failing(*args):
            kind = args[0] if len(args) == 3 else args[0].exc_type
            if not self._over and kind is not SystemExit:
                self._over = True
                self._tell("failing")
            hook(*args)

        failing.aborts_mpi = getattr(hook, "aborts_mpi", False)
        return failing


def share(t, value, tag):
    """Every rank's JSON value, in rank order, on all ranks. Two messages per rank."""
    line = np.frombuffer(json.dumps(value).encode(), np.uint8)
    if t.rank:
        t.send(line, 0, tag)
        return json.loads(t.recv_any(tag)[1].tobytes())
    values = [value] + [None] * (t.size - 1)
    for _ in range(t.size - 1):
        src, data = t.recv_any(tag)
        values[src] = json.loads(data.tobytes())
    line = np.frombuffer(json.dumps(values).encode(), np.uint8)
    for request in [t.isend(line, dst, tag) for dst in range(1, t.size)]:
        request.wait()
    return json.loads(line.tobytes())


def _state(values):
    """A State that was JSON."""
    listed = [
        Wait(**{**wait, "needs": tuple(Need(**need) for need in wait["needs"])})
        for wait in values["waits"]
    ]
    return State(**{**values, "waits": listed})


def _serials(state):
    return [wait.serial for wait in state.waits]


def _namespace():
    """Processes of one host may see different networks (containers): the name of this one's."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")
    return ""


def _own_addresses():
    """IPv4 addresses at which other hosts may reach this one."""
    found = []
    with contextlib.suppress(OSError):
        found = socket.gethostbyname_ex(socket.gethostname())[2]
    with contextlib.suppress(OSError, ImportError):
        import fcntl  # Linux: the address of every interface

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # an interface without an address
                    # SIOCGIFADDR: struct ifreq, 16 bytes of name, then a sockaddr_in
                    reply = fcntl.ioctl(s.fileno(), 0x8915, name.encode()[:15].ljust(256, b"\0"))
                    found.append(socket.inet_ntoa(reply[20:24]))
    return [a for a in dict.fromkeys(found) if not a.startswith("127.")]


# -- where the user's code is

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def is_ours(filename):
    """Whether a file is minidl's, or only runs threads."""
    return os.path.abspath(filename).startswith(_PACKAGE) or filename == threading.__file__


_OURS = {}  # filename -> is_ours, which takes longer than a collective's other checks


def user_frame(frame):
    """The innermost frame of the user's code from `frame` on; None in a thread of minidl's own."""
    while frame is not None:
        name = frame.f_code.co_filename
        ours = _OURS.get(name)
        if ours is None:
            ours = _OURS[name] = is_ours(name)
        if not ours:
            return frame
        frame = frame.f_back
    return None


def spot(filename, line):
    """file:line, from the current folder if the file is in it."""
    near = os.path.relpath(filename) if os.path.isabs(filename) else filename
    return f"{filename if near.startswith('..') else near}:{line}"


def _seen_at(frame):
    user = user_frame(frame) or frame
    return spot(user.f_code.co_filename, user.f_lineno) if user else "an unknown line"


def in_words(ranks):
    """rank 2; ranks 0-3; ranks 0, 2, 5."""
    ranks = list(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[0] + len(ranks))):
        return f"ranks {ranks[0]}-{ranks[-1]}" if len(ranks) > 2 else f"ranks {ranks[0]}, {ranks[1]}"
    return "ranks " + ", ".join(map(str, ranks))
