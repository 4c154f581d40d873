"""Two threads in each process. The first asks other ranks for their waits, the second answers.

If a rank waits for a long time, its first thread asks all ranks. `main` is the thread of the user's
program, and `looks` and `answers` are the two threads of this file:

    rank 0  main    recv from 1 .............           waits inside MPI
            looks   checks every half second if main is in the same wait; after 1 s asks all ranks
            answers <-- "state?"  --> counters, waits, the line where main is (waits.py)

The two threads use TCP (side_channel.py explains why they do not use MPI). They sleep nearly all
the time. docs/figures.md has their cost. The threads end the run in three cases:

    a deadlock           at once: two checks, 0.25 s apart, show ranks that can never continue
    a long wait          after `deadline_s` seconds in which a rank waits for a rank that computes
    a rank was killed    at once: its connection closes, and the rank has not reported its end

If a rank computes longer than the others, the threads report it, and the run continues
(stragglers.py). cli/supervisor.py watches the ranks from outside, in the launcher. The head of
supervisor.py explains why a lookout and a supervisor are both needed.

The report goes to stderr, then MPI_Abort ends the run. docs/observe.md shows a report and how it is
made. If a rank ends normally, it sends its last counters to the other ranks. So these ranks know if
a wait for this rank can never end. Of all waiting ranks, the one with the lowest number prints the
report. If this rank cannot report, another waiting rank reports.

Test: tests/comm/observe/test_lookout.py, tests/mpi/test_watch_mpi.py   Used by: watch.py
"""

import atexit
import contextlib
import itertools
import platform
import select
import sys
import threading
import time
from dataclasses import asdict, fields

from minidl.comm.observe.door import ANSWER_S, CLOSED
from minidl.comm.observe.places import places_now, said, spot, submitted_at
from minidl.comm.observe.side_channel import Channel
from minidl.comm.observe.stragglers import PACE_S, STEPS, stragglers
from minidl.comm.observe.waits import Need, State, Wait, arrows, cycle, describe, stuck
from minidl.comm.transport.abort import before_the_report
from minidl.comm.transport.supervised import is_supervised, say
from minidl.text import in_words, tr

LOOK_S = 0.5  # seconds between two checks of this rank's waits; a check costs nearly nothing
SUSPECT_S = 1.0  # after a wait of this many seconds a lookout asks the other ranks
AGAIN_S = 0.25  # seconds between two checks. If both find a deadlock, the deadlock is certain


class Book:
    """The counters and the waits of a rank's threads. The threads write the book, and the lookout
    reads it. Each thread writes only its own entries, and each write is atomic. So no locks are
    needed.
    """

    def __init__(self):
        self.counters, self.waits = {}, {}
        self.last = None  # (label, (file, line)) of the last collective
        self._serials = itertools.count()
        self.steps, self.computed_s, self.waited_s = 0, 0.0, 0.0  # counted for the main thread only
        self._main, self._began = threading.main_thread().ident, time.monotonic()

    def stepped(self):
        """Notes the end of a training step. The main thread calls this method."""
        self.steps, self.computed_s = (
            self.steps + 1, time.monotonic() - self._began - self.waited_s)

    def count(self, key):
        """Adds 1 to a counter. Returns its new value."""
        self.counters[key] = count = self.counters.get(key, 0) + 1
        return count

    def takes_over(self, held, group):
        """Notes that `group` has the Communicators `held` from now on. Deletes the counters of the
        group that had these Communicators before, because no rank uses that group any more.
        So the book does not grow with every new group."""
        if held.watched is not None:
            for key in [key for key in self.counters if key.split()[1].startswith(held.watched)]:
                del self.counters[key]
        held.watched = group

    def wait(self, needs, what, fn, *args, any_of=False):
        """Calls fn(*args), which may wait. Returns the result of fn. The wait is in the book until
        fn returns.

        needs: [(rank, key, count)], or a function that returns this list. A need is fulfilled when
        the counter `key` of that rank is at least `count`. The wait ends when all needs are
        fulfilled. any_of: if True, one fulfilled need is enough. what: a tuple (text for reports,
        *its arguments), for `text.format(*arguments)`."""
        me = threading.get_ident()
        by = submitted_at.get(None)  # the line that submitted a background job, or None
        self.waits[me] = (next(self._serials), needs, what, any_of, by)
        start = time.monotonic()
        try:
            return fn(*args)
        finally:
            self.waits.pop(me, None)
            if me == self._main:
                self.waited_s += time.monotonic() - start


class Lookout:
    """The two threads of one process. All ranks of t must make a Lookout.

    deadline_s: if a rank has waited this number of seconds for a rank that still computes, the run
    ends. If None, there is no limit.
    watches: the set of the Watches that use this lookout. When the set is empty, the threads end.
    None means that the set does not exist yet."""

    def __init__(self, t, deadline_s):
        self.book, self.watches = Book(), None
        self._t, self.rank, self.ranks = t, t.world_rank, t.ranks
        self.deadline_s = float("inf") if deadline_s is None else deadline_s
        self._since = {}  # thread -> (serial of its wait, time when the wait was first seen)
        # _paces: (steps, states, time) of the last search for stragglers. _slow: the stragglers'
        # ranks.
        self._paces, self._slow = (-STEPS, {}, 0.0), set()
        self._last_states = {}  # rank -> the State that it sent when it ended
        # _over: True if nothing may be reported any more. _left: True if the threads must end.
        self._over = self._left = False
        self._main = threading.main_thread().ident
        self._channel = Channel(t)
        self._link()
        for work in (self._answers, self._looks):
            name = f"minidl {work.__name__[1:]}"
            threading.Thread(target=work, name=name, daemon=True).start()
        atexit.register(self._leave)
        before_the_report(self._fails)

    # -- connections that stay open until a process ends

    def _link(self):
        """Opens a connection from this rank to the first rank, and keeps it open. If a process
        dies, its connections close, and the rank at the other end notices it."""
        # {Lines: the rank at the other end}. A short connection has None instead of a rank.
        self._links = {}
        first = self.ranks[0]
        if self.rank != first:
            try:
                self._links[self._channel.connect(first, say="link")] = first
            except OSError as error:
                self._say(
                    f"watch: no TCP connection to rank {first} ({error}). Deadlines still hold, "
                    "but reports cannot show where the other ranks are")

    def _say(self, text):
        sys.stderr.write(tr(f"rank {self.rank}: {text}") + "\n")
        sys.stderr.flush()
        sys.stdout.flush()  # the report comes first: the launcher may end this process at any time

    # -- the thread that answers other ranks

    def _answers(self):
        door = self._channel.door
        while not self._left:
            select.select([*door.sockets(), *self._links], [], [], door.patience_s())
            gone = self._hear()
            until = time.monotonic() + ANSWER_S
            # Before a rank ends normally, it sends a message on another connection. So read all
            # messages before a closed connection is reported.
            while gone and not self._left and time.monotonic() < until and select.select(
                    [door.listener, *self._links], [], [], 0)[0]:
                gone += self._hear()
            for rank in gone:
                self._lost(rank)
        for each in (door, *self._links):
            each.close()

    def _hear(self):
        """Reads and answers all messages. Returns the ranks whose connections have closed."""
        for lines in self._channel.door.callers():
            self._links[lines] = None
        gone = []
        for lines in select.select([*self._links], [], [], 0)[0]:
            try:
                for line in lines.heard():
                    self._answer(lines, line)
            except (OSError, ValueError):  # the other side does not read, or sent a wrong line
                lines.over = lines.over or "is of no use"
            if lines.over:
                lines.close()
                rank = self._links.pop(lines)
                if rank is not None and lines.over == CLOSED:
                    gone.append(rank)
        return gone

    def _answer(self, lines, line):
        what, rank = line.get("say"), line.get("from")
        if rank not in self.ranks:
            raise ValueError(f"there is no rank {rank}")
        if what == "link":
            self._links[lines] = rank
        elif what == "state?":
            lines.say(**asdict(self.state()))
        elif what == "ended":
            self._last_states[rank] = _state(line.get("state"))
        elif what == "failing":  # that rank reports its own error, and ends all ranks
            self._over = True

    def _lost(self, rank):
        """Reports that the connection to a rank has closed, and ends all ranks. Does nothing if
        that rank ended normally, or if another process reports the death."""
        reporter = self.ranks[1] if rank == self.ranks[0] else self.ranks[0]
        if rank in self._last_states or self._over or self.rank != reporter or is_supervised():
            return  # the launcher reports the death itself, and can name the signal
        # This rank reports at once, because the launcher will end it, too (MPICH after 1 or 2 ms,
        # Open MPI after 250 ms). If MPICH ends this rank before the report, the user still reads
        # MPICH's own message, which names the signal.
        self._say(
            f"watch: rank {rank} has died without a message: killed by a signal, or out of memory? "
            f"The last collective that rank {self.rank} began was {self._last()}.")
        self._end()

    # -- the thread that looks for long waits

    def _looks(self):
        wanted = SUSPECT_S  # asks the other ranks after 1, 2, 4, ... seconds of one wait
        while not self._over:
            time.sleep(LOOK_S)
            if self.watches is not None and not self.watches:
                atexit.unregister(self._leave)
                self._leave()
                return
            waited, due = self._longest()
            if waited < SUSPECT_S:
                wanted = SUSPECT_S
            elif waited >= wanted or due >= self.deadline_s:
                wanted = max(wanted, waited) * 2
                self._look(due)
            self._look_at_paces(time.monotonic())

    def _look_at_paces(self, now):
        """On the first rank: reports each straggler once. now: the result of time.monotonic()."""
        steps, before, when = self._paces
        if self.rank != self.ranks[0] or now - when < PACE_S or self.book.steps < steps + STEPS:
            return
        states = self._ask_all()
        self._paces = self.book.steps, states, now
        slow = {found.rank: found for found in stragglers(before, states)}
        for rank in slow.keys() - self._slow:
            self._say(f"watch: {slow[rank]}")
        self._slow = set(slow)

    def _longest(self):
        """Returns (the seconds of this rank's longest wait, the seconds of its longest wait that
        has a deadline). Also notes when each new wait was first seen.

        A wait for certain ranks has a deadline. A wait for a message from any rank has no deadline:
        a server may wait for ever."""
        now, since = time.monotonic(), {}
        longest = due = 0.0
        for thread, (serial, needs, _, any_of, _) in list(self.book.waits.items()):
            before, when = self._since.get(thread, (None, now))
            since[thread] = (serial, when if before == serial else now)
            seconds = now - since[thread][1]
            longest = max(longest, seconds)
            if needs and not any_of:
                due = max(due, seconds)
        self._since = since
        return longest, due

    def _look(self, waited):
        """Asks all ranks for their states. Reports a deadlock, or a wait that has reached its
        deadline. waited: the seconds of this rank's longest wait that has a deadline."""
        states = self._ask_all()
        lost = stuck(states)
        if self.rank in lost:
            time.sleep(AGAIN_S)
            again = self._ask_all()
            same_waits = all(_serials(states[r]) == _serials(again[r]) for r in lost)
            if stuck(again) == lost and same_waits:
                self._report_stuck(again, lost)
                return
        if waited >= self.deadline_s:
            self._report_late(states, waited)

    def _report_stuck(self, states, lost):
        path = cycle(states, lost)
        ended = states[path[-1]].ended
        what = f"waits for rank {path[-1]}, which has ended" if ended else "wait-for cycle"
        text = f"watch: deadlock: {in_words(lost)} can never go on.\n{describe(states)}"
        self._report(lost, f"{text}\n  {what}: {arrows(path)}")

    def _report_late(self, states, waited):
        late = sorted(r for r, s in states.items() if s.computes_at or s.silent)
        who = in_words(late) if late else "no rank in particular: a very slow message?"
        text = f"watch: waited {waited:.0f} s (deadline_s {self.deadline_s:g}) for {who}.\n"
        self._report([r for r, s in states.items() if s.waits], text + describe(states))

    def _report(self, concerned, text):
        """Prints the text and ends all ranks.

        concerned: a list of ranks. The lowest of these ranks reports. The others wait, and report
        only if the lowest rank has not reported."""
        if self.rank != min(concerned):
            time.sleep(2 * SUSPECT_S)
        if not self._over:
            self._tell("failing")
            self._say(text)
            say("why", how=text.splitlines()[0], line="")
            self._end()

    def _ask_all(self):
        return {rank: self._ask(rank) for rank in self.ranks}

    def _ask(self, rank):
        if rank == self.rank:
            return self.state()
        if rank in self._last_states:
            return self._last_states[rank]
        try:
            with self._channel.connect(rank, say="state?") as lines:
                return _state(lines.answer())
        except TimeoutError:
            why = "does not answer: its C code holds Python's lock, or a signal has stopped it"
        except (OSError, ValueError):
            if rank in self._last_states:  # the rank has ended meanwhile
                return self._last_states[rank]
            why = "cannot be reached: its process has ended"
        return State(rank, silent=why)

    def state(self, ended=False):
        """Returns the State of this rank now. ended: True if the rank's program has ended."""
        places, now = places_now(), time.monotonic()
        listed = []
        for thread, (serial, needs, what, any_of, by) in sorted(self.book.waits.items()):
            seen, since = self._since.get(thread, (None, now))
            needs = tuple(Need(*need) for need in (needs() if callable(needs) else needs))
            name = "main" if thread == self._main else "a background thread"
            seconds = now - since if seen == serial else 0.0
            place = places.get(thread)
            text, line = what[0].format(*what[1:]), said(place)
            if by is not None and not (place and place[2]):
                line = spot(*by)
            listed.append(Wait(text, needs, any_of, name, line, serial, seconds))
        computes = not ended and self._main not in self.book.waits
        at = said(places.get(self._main)) if computes else ""
        return State(self.rank, dict(self.book.counters), listed, at, self._last(), ended,
                     host=platform.node(), steps=self.book.steps, computed_s=self.book.computed_s)

    def _last(self):
        if self.book.last is None:
            return "none"
        label, line = self.book.last
        return label + (f" at {spot(*line)}" if line else "")

    # -- the end of the program

    def _tell(self, say, **more):
        """Sends a line to all other ranks that have not ended. Gives up after a second."""
        until = time.monotonic() + 1.0
        for rank in self.ranks:
            if rank not in (self.rank, *self._last_states) and time.monotonic() < until:
                with contextlib.suppress(OSError):
                    self._channel.connect(rank, say=say, **more).close()

    def _end(self):
        self._over = True
        self._t.abort()

    def _leave(self):
        """Is called when the program ends, or when all Watches of this lookout are deleted. Tells
        the other ranks that this rank has ended. Afterwards this lookout sends them nothing."""
        if not self._over:
            self._over = True
            self._tell("ended", state=asdict(self.state(ended=True)))
        self._left = True
        self._tell_of_strangers()
        self._channel.door.refuse()

    def _tell_of_strangers(self):
        n = self._channel.door.n_turned_away
        if n and not say("strangers", n=n):
            self._say(f"watch: connections of other programs that were turned away: {n}")

    def _fails(self):
        """Is called when this process ends by an exception. Tells the other ranks not to report.
        """
        if not self._over:
            self._over = True
            self._tell("failing")
            self._tell_of_strangers()


def _state(values):
    """Returns the waits.State that the JSON object `values` describes. Raises ValueError if it
    describes no State."""
    try:
        listed = [_made(Wait, {**wait, "needs": tuple(_made(Need, need) for need in wait["needs"])})
                  for wait in values["waits"]]
        return _made(State, {**values, "waits": listed})
    except (KeyError, TypeError) as error:
        raise ValueError(f"the line is not the state of a rank: {error}") from None


def _made(kind, values):
    """Returns an object of the dataclass `kind`. values: {name of a field: its value}. Raises
    TypeError if a value does not have the type of its field."""
    for field in fields(kind):
        wanted = (float, int) if field.type is float else field.type
        if not isinstance(values.get(field.name, field.default), wanted) and field.name in values:
            raise TypeError(f"the field {field.name} of a {kind.__name__} has a wrong type")
    return kind(**values)


def _serials(state):
    return [wait.serial for wait in state.waits]
