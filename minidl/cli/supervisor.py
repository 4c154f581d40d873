"""Supervises the ranks of a run, and prints why the run failed.

    minidl run (this process) --- mpiexec --- guard --- rank 0     rank.py is the guard and the rank
         ^                            '------ guard --- rank 1
         '== TCP: "born", "joined", "exit -9" ==='

Each guard reports how its rank ended. Each rank reports its state: born, joining, joined, finished
and so on (supervised.py). The run ends at the first failure, and the supervisor prints which rank
failed. These are the failures:

    a rank is killed by a signal, or ends before its script ends (by os._exit, or by a crash in C)
    some ranks call sys.exit(1), and the others do not within half a second
    a rank ends its script with status 0 before world(), and other ranks wait in world()
    a rank does not start within `start_s` seconds after the first rank (its host has no minidl, or
        another Python)
    ranks have waited in world() for `deadline_s` seconds, because another rank does not come
    no rank moves for `deadline_s` seconds: each rank stays at one Python instruction
    no rank of an elastic.run has done a step for `silence_s` seconds

With --heal a rank may be killed, or may end before its script ends. Then the supervisor only prints
this failure. The other ranks make a new group, within `start_s` seconds, and continue
(elastic/heal.py). But the run ends if a rank dies before all ranks are in world(), or if no rank is
left. After elastic.run only the group's first rank does the rest of the script, such as writing the
result. So the run fails if this rank dies after elastic.run.

A rank that raises an exception prints the traceback itself. At the end of every run the guards kill
their ranks, and then mpiexec ends.

A Watch also observes ranks (comm/observe/lookout.py). Watch and supervisor find different failures.
A Watch runs inside the ranks. It knows the message that a rank waits for, so it finds a deadlock
after a second. A Watch also works under mpirun without this file. The supervisor runs outside the
ranks. It knows how a rank ended. It also finds a rank that hangs outside minidl's calls, a rank
that has no Watch, and a rank that does not answer. If no rank moves, the supervisor asks each rank
LOOKS + LATER times for its place in the script. Then the supervisor ends the run. It asks the last
LATER questions after `deadline_s`, so a Watch with the same deadline prints first. Watch and
supervisor send their questions as lines of JSON over TCP. places.py finds a rank's place in its
script.

Test: tests/cli/test_supervisor.py   Used by: launcher.py
"""

import select
import signal
import sys
import time
from dataclasses import dataclass, field

from minidl.cli import traces
from minidl.cli.rank import SUPERVISOR
from minidl.cli.rank import __file__ as RANK
from minidl.comm.observe.door import CLOSED, Door, new_token
from minidl.comm.observe.side_channel import own_addresses
from minidl.text import in_words

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that end the run
TOGETHER_S = 0.5  # if all ranks exit, the last rank follows the first rank within this time
STARTING_S = 3.0  # instead of TOGETHER_S, while some ranks are not in world() yet
PASSED_ON_S = 0.15  # time for mpiexec to pass on output before ranks are killed
KILLED_S = 5.0  # time for the guards to kill their ranks; after this time mpiexec is ended
LOOKS = 8  # in deadline_s seconds the supervisor asks each rank 8 times for its place
LATER = 2  # 2 more questions after deadline_s, so that a Watch with the same deadline prints first
ANSWER_S = 0.5  # the shortest time between two questions: a busy machine answers slowly


@dataclass(eq=False)
class Rank:
    """What the supervisor knows about one rank."""

    name: object  # the rank's number, or "?" until the number is known
    host: str = ""
    pid: int = 0
    hydra: bool = False  # True if mpiexec is MPICH's
    links: dict = field(default_factory=dict)  # {"guard" or "rank": connection}
    state: str = "born"  # the later states: joining, joined, finished, failed, exits
    in_mpi: bool = False  # True if MPI was initialised on this rank, in world() or by the script
    since: float = 0.0  # when the current state began
    status: int | None = None  # the exit status of the process; -n if signal n has ended it
    ended_at: float = 0.0
    exits: dict | None = None  # the rank's message about sys.exit
    stopped: float | None = None  # when a signal stopped the process; None if the process runs
    hung_up: bool = False  # the rank's process (not the guard) has closed the connection
    place: str = ""  # the line of the script, from the rank's last answer
    at: str = ""  # the instruction of every call on the stack, as text, from the rank's last answer
    answered: bool = True  # the rank has answered the last question
    same: int = 0  # how many times in a row the rank was at the same instruction
    heard: float = 0.0  # when the rank last reported a state or a step
    step: int | None = None  # how many steps of training are done
    begins: int | None = None  # the first step that the rank reported
    trained: bool = False  # the rank's elastic.run has ended
    first: bool = False  # the rank was rank 0 of the group at the end of elastic.run
    heals: float | None = None  # when the rank began to make a new group, after another rank died

    def __str__(self):
        return f"rank {self.name} (process {self.pid} on {self.host})"


# The kinds of messages, and the values in each: {name: type}.
FIRST = {"rank": (int, type(None)), "host": str, "hydra": bool}
SAID = {
    "guard": FIRST, "runs": {"pid": int}, "exit": {"status": int}, "stopped": {}, "continued": {},
    "ended": {},
    "born": FIRST, "joining": {}, "joined": {"rank": int},
    "finished": {"mpi": bool},
    "failed": {"status": int},
    "exits": {"status": int, "code": str, "line": str}, "why": {"how": str, "line": str},
    "where": {"line": str, "at": str, "serves": bool}, "strangers": {"n": int},
    "step": {"step": int}, "trained": {"first": bool}, "heals": {},
}


def checked(line):
    """Returns the message `line`. Raises ValueError if SAID does not have this kind of message, or
    if values of the message are missing or wrong."""
    what = line.get("say")
    if not isinstance(what, str) or what not in SAID:
        raise ValueError(f"unknown message {what!r:.100}")
    for name, kind in SAID[what].items():
        if not isinstance(line.get(name, ...), kind):
            raise ValueError(f"the message {what!r} has a wrong value for {name!r}; got "
                             f"{line.get(name)!r:.100}")
    return line


def signal_name(number):
    """Returns the name of a signal, such as SIGKILL, or "signal 40" if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Supervisor:
    """Supervises one run. Start mpiexec with the variables in the attribute `environment`. Then
    `run(mpiexec, wake)` waits for the end of the run.

    n:          how many ranks there are
    deadline_s: how many seconds ranks may wait without moving. None or 0 means no limit
    start_s:    the last rank must start at most this many seconds after the first rank
    one_host:   if True, listens only on the loopback address
    say:        a function. say(text) prints a text for the user
    silence_s:  the run fails if no rank of an elastic.run does a step for this many seconds. 0
                means no limit
    heal:       if True, the run continues when a rank dies"""

    def __init__(self, n, deadline_s=None, start_s=60.0, one_host=True, say=sys.stderr.write,
                 silence_s=0.0, heal=False):
        self.n, self.deadline_s, self.start_s, self._write = n, deadline_s, start_s, say
        self.silence_s, self._suspected = silence_s, False
        self.failure = None  # what ended the run: a text without process numbers
        self.failed = []  # the ranks that caused the failure
        self.interrupted = 0  # the number of the signal that ends the run
        self.heal, self._lost = heal, []  # _lost: with --heal, the dead ranks
        token = new_token()
        self._door = Door(token, one_host, backlog=4096)
        addresses = "+".join(["127.0.0.1"] if one_host else own_addresses())
        port = self._door.listener.getsockname()[1]
        self.environment = {SUPERVISOR: f"{addresses},{port},{token}"}
        self._links = {}  # {connection: its Rank, or None before its first message}
        self._traces, self._phase = set(), 0  # files that MPI may leave; see _note_traces
        self._n_strangers = 0  # how many connections of other programs the ranks have refused
        self.ranks = []
        self.status = None  # the exit status of the run, when it is decided
        self._first = self._looked = None
        self._pause_s = max((deadline_s or 0) / LOOKS, ANSWER_S)

    # -- the loop

    def run(self, child, wake):
        """Waits for the end of the run. Returns its exit status. child: mpiexec, a Popen. wake: a
        socket that gets the number of each signal, in one byte (signal.set_wakeup_fd). A signal of
        ENDING ends all ranks."""
        while self.status is None and not self.interrupted and child.poll() is None:
            self._hear(0.25, wake)
            if not self.interrupted:
                self._judge(time.monotonic())
                self._note_traces(child)
        self._hear(0.0, wake)  # Ctrl-C reaches mpiexec, too, which may have ended first
        if self.interrupted:
            return self._interrupt(child)
        if self.status is None and child.returncode < 0:
            self._blame(how := f"mpiexec (process {child.pid}) was killed by "
                        f"{signal_name(-child.returncode)}", [])
            self._end_with(f"{how}: this ends all ranks", 128 - child.returncode)
        if self.status is None:  # mpiexec has ended: read the last messages
            until = time.monotonic() + KILLED_S
            while self._hear(0.05) or (self._cut_off(child) and time.monotonic() < until):
                pass
            self._judge(time.monotonic() + STARTING_S)
        if self.status is None and (ranks := self._cut_off(child)):
            self._fail(ranks, "mpiexec ended, with status 0, in the middle of the script. Has a "
                       "host failed?", 1)
        if self.status is None:
            return child.returncode
        self.end(child)
        return self.status

    def _cut_off(self, child):
        """Returns the ranks that had not ended when mpiexec ended with status 0. Open MPI's mpiexec
        ends with status 0 when a host fails."""
        return [] if child.returncode else [
            r for r in self.ranks if r.status is None and r.state in ("joining", "joined")]

    def _interrupt(self, child):
        """Ends all ranks, because this process got a signal. Returns the exit status.

        Ctrl-C in a terminal also reaches the ranks. They get a second to print where they were.
        `kill -INT` reaches only this process."""
        number = self.interrupted
        until = time.monotonic() + (1.0 if number == signal.SIGINT else 0.0)
        self._traces |= traces.of(child.pid)
        while child.poll() is None and time.monotonic() < until:
            self._traces |= traces.of(child.pid)  # a rank that starts may still make files
            time.sleep(0.02)
        self.end(child)
        self._write(f"minidl run: ended by {signal_name(number)}\n")
        return 128 + number

    def end(self, child):
        """Ends all ranks, then mpiexec. Removes the files that MPI leaves."""
        time.sleep(PASSED_ON_S)
        if child.poll() is None:
            self._traces |= traces.of(child.pid)
        hydra = any(rank.hydra for rank in self.ranks)
        for rank in self.ranks:
            self._tell(rank, "guard", ask="end")
            if "guard" not in rank.links:  # the guard was killed; its rank may still run
                self._tell(rank, "rank", ask="end")
        # MPICH's mpiexec is killed, because it would print ten lines about ranks that failed. Open
        # MPI's mpiexec is not killed at once, because it has to remove its folders.
        gone = child.poll() is not None
        if (hydra or gone) and self._all_ended(time.monotonic() + KILLED_S):
            child.kill()
        for patience, then in ((KILLED_S, child.terminate), (3.0, child.kill)):
            until = time.monotonic() + patience
            while child.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            if child.poll() is None:
                then()
        child.wait()
        traces.remove(self._traces)

    def _note_traces(self, child):
        """Looks for MPI's files once while ranks start, and once when all ranks are in MPI. When
        mpiexec has been killed, it is too late to look for them."""
        in_mpi = all(rank.state not in ("born", "joining") for rank in self.ranks)
        phase = 2 if len(self.ranks) >= self.n and in_mpi else 1 if self.ranks else 0
        if phase > self._phase:
            self._phase = phase
            self._traces |= traces.of(child.pid)

    def close(self):
        """Closes all connections. Then a guard or a rank that still runs ends itself."""
        for each in (self._door, *self._links):
            each.close()
        if n := self._door.n_turned_away + self._n_strangers:
            self._write(f"minidl run: connections of other programs that were turned away: {n}\n")

    def _all_ended(self, until):
        """Waits until all guards have ended, or until the time `until`. Returns True if all guards
        have ended."""
        while guards := [r.links["guard"] for r in self.ranks if "guard" in r.links]:
            ready, _, _ = select.select(guards, [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return False
            for lines in ready:
                self._read(lines)
        return True

    def _tell(self, rank, which, **line):
        """Sends a message to a rank or to its guard. which: "rank" or "guard". Does nothing if
        there is no connection."""
        if which in rank.links:
            try:
                rank.links[which].say(**line)
            except OSError:
                rank.links.pop(which)

    def _hear(self, wait_s, *wakes):
        """Reads the messages that come within wait_s seconds. Returns True if something came."""
        ready = select.select([*wakes, *self._door.sockets(), *self._links], [], [], wait_s)[0]
        for lines in self._door.callers():
            self._links[lines] = None
        for wake in [each for each in ready if each in wakes]:
            for number in wake.recv(4096):
                if number in ENDING and not self.interrupted:  # a second signal changes nothing
                    self.interrupted = number
        for lines in [each for each in ready if each in self._links]:
            self._read(lines)
        return bool(ready)

    def _read(self, lines):
        """Reads the messages of one connection. If a message is wrong, closes the connection."""
        for line in lines.heard():
            try:
                self._heard(lines, checked(line))
            except ValueError as error:
                lines.over = f"has sent a line that is not ours: {error}"
                break
        if lines.over:
            self._closed(lines, self._links.pop(lines))

    def _heard(self, lines, line):
        """Writes the content of a message into the Rank of the sender."""
        rank, now, what = self._links[lines], time.monotonic(), line["say"]
        if (rank is None) != (what in ("guard", "born")):
            raise ValueError(f"the message {what!r} came at the wrong time")
        if rank is None:  # the first message of this connection
            which = "guard" if what == "guard" else "rank"
            rank = self._links[lines] = self._rank_of(line, which)
            rank.links[which] = lines
            self._first = self._first or now
            return
        if what == "runs":
            rank.pid = line["pid"]
        elif what == "exit":
            rank.status, rank.ended_at = line["status"], now
        elif what in ("stopped", "continued"):
            rank.stopped = now if what == "stopped" else None
        elif what == "where":
            rank.same = rank.same + 1 if line["at"] == rank.at and not line["serves"] else 0
            rank.place, rank.at, rank.answered = line["line"], line["at"], True
        elif what == "step":
            rank.step, rank.heard, rank.heals = line["step"], now, None
            if rank.begins is None or rank.trained:  # a script may train several times
                rank.begins, rank.trained, rank.first = rank.step, False, False
        elif what == "trained":
            rank.trained, rank.first, rank.heals = True, line["first"], None
        elif what == "heals":
            rank.heals = now
        elif what == "strangers":
            self._n_strangers += line["n"]
        elif what == "why":
            at = " at " if line["line"] else ""
            self._blame(f"{line['how']}{at}{line['line']}", [rank])
        elif what != "ended":
            rank.state, rank.since = what, now
            rank.heard = now
            rank.exits = line if what == "exits" else rank.exits
            rank.in_mpi |= what == "joined" or line.get("mpi", False)
            if what == "joined":
                rank.name = line["rank"]
            if what == "failed":
                self._blame("a failure that the rank has reported", [rank])
                self.status = line["status"]

    def _rank_of(self, line, which):
        """Returns the Rank that sent `line`, the first message of a connection. If there is no such
        Rank yet, makes it. which: "guard" or "rank", the process that sent the message."""
        for rank in self.ranks:
            if rank in self._lost:  # a new process may have the number of a dead rank
                continue
            if rank.name == line["rank"] is not None or (
                    line["rank"] is None and rank.host == line["host"] and which not in rank.links):
                return rank
        name = "?" if line["rank"] is None else line["rank"]
        self.ranks.append(Rank(name, line["host"], hydra=line["hydra"], since=time.monotonic(),
                               heard=time.monotonic()))
        return self.ranks[-1]

    def _closed(self, link, rank):
        """Records that a connection is closed."""
        link.close()
        if rank is not None:
            if link.over != CLOSED:
                self._write(f"minidl run: {rank} {link.over}; this connection is closed\n")
            rank.hung_up |= link is rank.links.get("rank")
            if self.heal and rank.status is None and link is rank.links.get("guard"):
                # The guard was killed. When a guard ends, Linux also kills its rank.
                rank.status, rank.ended_at = -signal.SIGKILL, time.monotonic()
            rank.links = {which: it for which, it in rank.links.items() if it is not link}

    # -- deciding whether the run has failed

    def _judge(self, now):
        """Decides whether the run has failed. If so, sets the status and prints why."""
        if self.status is not None:
            return
        # Guards end only when all ranks have finished. If a process ended earlier, without
        # MPI_Finalize, MPICH's mpiexec would kill the other ranks without a message.
        if all(rank.status == 0 and rank.state == "finished" for rank in self.ranks):
            for rank in self.ranks:
                self._tell(rank, "guard", ask="end")
        self._judge_absent()
        left = [rank for rank in self.ranks if self._left_badly(rank, now)]
        if self.heal:
            left = self._judge_lost(left, now)
        if self.status is not None:
            return
        crashed = [rank for rank in left if rank.status is not None and rank.status < 0]
        # a rank that is not in world() yet may have just started: ranks start one after another
        starting = len(self.ranks) < self.n or any(
            rank.state == "born" for rank in self.ranks if rank not in left)
        together_s = STARTING_S if starting else TOGETHER_S
        late = any(now - (r.ended_at or r.since) >= together_s for r in left)
        if crashed:
            self._fail(*self._how(crashed[0]), 128 - crashed[0].status)
        elif left and len(left) == self.n:  # all ranks failed: wait until each rank has ended
            if all(rank.status is not None for rank in left):
                self._blame(self._how(left[0])[1], left)
                self.status = max(self._status_of(rank) for rank in left)
        elif left and late:
            rank, how = self._how(left[0])
            self._fail(rank, how, self._status_of(rank) or 1,
                       ", but not all ranks did: this ends all ranks")
        elif self._first and len(self.ranks) < self.n and now - self._first > self.start_s:
            missing = sorted(set(range(self.n)) - {rank.name for rank in self.ranks})
            self._fail([Rank(name) for name in missing], f"not started {self.start_s:g} s after "
                       f"the first rank. Are {sys.executable} and {RANK} on every host?", 1)
        elif not left:
            # >= and not ==, because self.ranks has dead ranks and their replacements
            if self.silence_s and self._first and len(self.ranks) >= self.n:
                self._listen(now)
            if self.deadline_s and self.status is None:
                self._look(now)

    def _judge_absent(self):
        """Ends the run if a rank has ended its script before world(), and other ranks wait in
        world()."""
        absent = [rank for rank in self.ranks if rank.state == "finished" and not rank.in_mpi]
        waiting = [rank.name for rank in self.left() if rank.state == "joining"]
        if absent and waiting:
            how = f"before world(), where {in_words(sorted(waiting, key=str))} would wait forever"
            self._fail(absent[0] if len(absent) == 1 else absent, f"ended its script {how}", 1)

    def _judge_lost(self, left, now):
        """Handles failed ranks with --heal. left: the ranks that failed. A failed rank that has not
        called sys.exit is dead, and is recorded as lost. Returns the other failed ranks. The run
        ends when all living ranks have ended their scripts. It does not wait for MPI_Finalize,
        which may hang after a death."""
        for rank in left:
            if rank.state != "exits" and rank not in self._lost:
                self._lost.append(rank)
                self._write("minidl run: {} {}\n".format(*self._how(rank)))
        others = self.left()
        if self._lost and not others:
            self._blame("no rank is left", self._lost)
            self._end_with("no rank is left", 1)
        elif len(self.ranks) >= self.n and all(
                rank.state == "finished" and (rank.status is not None or
                                              now - rank.since > KILLED_S) for rank in others):
            self._judge_healed(others)
        elif self._lost:
            self._judge_healing(others, now)
        return [rank for rank in left if rank not in self._lost]

    def _judge_healed(self, others):
        """Sets the exit status of the run, when all living ranks have ended their scripts. others:
        the living ranks. The first rank of the group usually writes the results. So the run has
        failed if the first rank died after its elastic.run."""
        if not self._lost or any(rank.first for rank in others):
            self.status = 0
            return
        how = ("the first rank of the group has died after elastic.run, and no other rank does the "
               "rest of its work, such as writing the result")
        self._blame(how, self._lost)
        self._end_with(how, 1)

    def _judge_healing(self, others, now):
        """Ends the run if a rank died before all ranks were in world(). Also ends the run if the
        living ranks, `others`, need more than `start_s` seconds to make a new group."""
        early = [rank for rank in self._lost if rank.state in ("born", "joining")]
        if early and now - early[0].ended_at > STARTING_S and any(
                rank.state in ("born", "joining") for rank in others):
            self._fail(early[0], "is missing: the other ranks can continue without it only if it "
                       "dies after world()", 1)
        healing = [rank for rank in others if rank.heals]
        if self.status is None and healing and (
                now - max(rank.heals for rank in healing) > self.start_s):
            self._late(f"the ranks have not healed within {self.start_s:g} s (--start-limit)",
                       healing)

    def left(self):
        """Returns all ranks that are not recorded as lost. Ranks are lost only with --heal."""
        return [rank for rank in self.ranks if rank not in self._lost]

    def _left_badly(self, rank, now):
        """Returns True if the rank is known to have failed."""
        if rank.state == "exits":
            return True
        # A rank's last message may come after the last message of its guard. When the rank's
        # connection is closed, all messages of the rank have come.
        known = rank.status is not None and (
            rank.hung_up or now - rank.ended_at > TOGETHER_S)
        return known and (rank.status != 0 or rank.state != "finished")

    def _status_of(self, rank):
        return rank.exits["status"] if rank.exits else rank.status

    def _how(self, rank):
        """Returns (rank, text). The text tells how the rank ended."""
        if rank.exits and not (rank.status or 0) < 0:
            return rank, f"called sys.exit({rank.exits['code']}) at {rank.exits['line']}"
        when = {"born": "before world()", "joining": "in world()", "joined": "in the middle of its "
                "script", "finished": "after its script", "exits": "after sys.exit"}[rank.state]
        if rank.status < 0:
            name = signal_name(-rank.status)
            why = ": out of memory?" if name == "SIGKILL" else ""
            return rank, f"was killed by {name} {when}{why}"
        return rank, (f"ended {when} with status {rank.status} and without a message, by os._exit "
                      "or in a library")

    def _listen(self, now):
        """Ends the run if no rank has reported a step or a state for silence_s seconds. Then it
        prints at which place in the script each suspected rank is. If a signal has stopped some
        ranks, the suspects are these ranks. Otherwise the suspects are the ranks that do not
        answer. If all ranks answer, the suspects are the ranks with the fewest steps."""
        ranks = self.left()
        training = [rank for rank in ranks if not rank.trained and rank.state != "finished"]
        silent_s = now - max((rank.heard for rank in ranks), default=now)
        patience_s = self.silence_s
        if not any(rank.step is not None for rank in ranks):  # ranks may still load data
            patience_s = max(patience_s, self.start_s)
        if not training or silent_s < patience_s / 2:
            self._suspected = False
        elif not self._suspected:
            self._suspected = True
            self._ask(training)
        elif silent_s > patience_s:
            behind = min((rank.step or 0 for rank in training))
            suspects = [rank for rank in training if rank.stopped] or [
                rank for rank in training if not rank.answered] or [
                rank for rank in training if (rank.step or 0) == behind]
            self._late(f"no rank has done a step for {patience_s:g} s (--silence)", suspects)

    def _ask(self, ranks):
        for rank in ranks:
            rank.answered = False
            self._tell(rank, "rank", ask="where")

    def _look(self, now):
        """Asks each rank for its place in the script, at regular intervals. A rank has not moved if
        its last LOOKS + LATER places are equal. A missing answer counts as an equal place. Ends the
        run if no rank has moved. Also ends the run if a rank has waited in world() for deadline_s
        seconds, or if a signal has stopped a rank for deadline_s seconds."""
        busy = [rank for rank in self.ranks if rank.status is None]
        waiting = [rank for rank in busy if rank.state == "joining"]
        absent = [rank for rank in self.ranks if rank.state == "born"]
        if self._looked is None or now - self._looked >= self._pause_s:
            self._looked = now
            for rank in busy:
                rank.same += not rank.answered
            self._ask(busy)
        if not busy or self._first is None or len(self.ranks) < self.n:
            return
        if absent and any(now - rank.since > self.deadline_s for rank in waiting):
            self._late(f"{in_words(sorted(r.name for r in waiting))} waited {self.deadline_s:g} s "
                       "(--deadline) in world()", absent)
        elif stopped := [r for r in busy if r.stopped and now - r.stopped > self.deadline_s]:
            self._late(f"a rank was stopped for {self.deadline_s:g} s (--deadline)", stopped)
        elif all(rank.same >= LOOKS + LATER for rank in busy):
            self._late(f"no rank has moved for {self.deadline_s:g} s (--deadline)", busy)

    def _late(self, what, ranks):
        """Ends the run. Prints `what`, and where each of these ranks is."""
        lines = [what]
        for rank in ranks:
            where = f"is at {rank.place}"
            if not rank.answered:
                where = ("does not answer. Is it in C code? It was at "
                         f"{rank.place or 'an unknown line'}")
            if rank.stopped:
                where = "was stopped by a signal"
            lines.append(f"  {rank} {where}")
        self._blame(what, ranks)
        self._end_with("\n".join(lines), 1)

    def _fail(self, ranks, how, status, more=""):
        """Ends the run with the exit status `status`, and prints a sentence. ranks: the subject of
        the sentence, a Rank or a list of Ranks. how: the rest of the sentence, which is also kept
        in the attribute `failure`. more: a text after the sentence, which is only printed."""
        one = isinstance(ranks, Rank)
        who = ranks if one else in_words([rank.name for rank in ranks]) + ":"
        self.failure, self.failed = how, [ranks] if one else ranks
        self._end_with(f"{who} {how}{more}", status)

    def _blame(self, how, ranks):
        """Records what ended the run. Only the first call counts."""
        if self.failure is None:
            self.failure, self.failed = how, ranks

    def _end_with(self, text, status):
        self.status = status
        self._write(f"minidl run: {text}\n")
