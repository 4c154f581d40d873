"""The launcher outlives its ranks: it knows how each of them began and ended, and says so.

    minidl run (this process) --- mpiexec --- guard --- rank 0     rank.py is the guard and the rank
         ^                            '------ guard --- rank 1
         '== TCP: "born", "joined", "exit -9" ==='

Each guard tells how its rank ended, each rank where it is (supervised.py). The first of these ends
the run; the sentence names the rank:

    a rank is killed by a signal, or ends before its script does (os._exit, a crash in C)
    sys.exit(1) on some ranks, and not on all of them within half a second
    a rank ends its script before world(), with status 0, and others are in world()
    a rank does not start within `start_s` of the first (its host has no minidl, no such Python)
    a rank has waited `deadline_s` in world() for one that does not come
    no rank moves for `deadline_s`: the same instruction of Python again and again, on all of them
    no rank of an elastic.run has done a step for `silence_s`

With --heal the first kind is only said, as long as one rank lives: the others go on (elastic/).
They have `start_s` for healing. A death before all ranks are in world() ends the run, and so does
one of the group's first rank after its elastic.run: nobody does what is left of its script.

A rank that raised has said why itself. However a run ends, guards kill their ranks, then mpiexec
ends.

A Watch looks at ranks, too (comm/observe/lookout.py). Both stay: each sees what the other cannot.
A Watch is inside of the ranks: it knows which message a rank waits for, and so a deadlock after a
second; it also works under mpirun alone. This process is outside: it knows how a rank ended, and
sees one that stands still outside of minidl's calls, has no Watch or does not answer. It takes
longer, LOOKS + LATER looks, so that a Watch speaks first. Both ask by lines of JSON over TCP, and
places.py says where a rank is.

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

TOGETHER_S = 0.5  # between the first and the last of ranks that all leave alike
STARTING_S = 3.0  # the same, while some have not come to world()
PASSED_ON_S = 0.15  # mpiexec drops what it has not passed on yet of ranks that are killed
KILLED_S = 5.0  # for guards to kill their ranks; then mpiexec is told
LOOKS = 8  # at each rank's place in deadline_s; the run ends when none has moved between them,
LATER = 2  # and two more: a Watch has the deadline, too, and says more
ANSWER_S = 0.5  # at least, between two looks: a busy machine takes its time


@dataclass(eq=False)
class Rank:
    """What is known of one rank."""

    name: object  # its number, or "?" until it is known
    host: str = ""
    pid: int = 0
    hydra: bool = False
    links: dict = field(default_factory=dict)  # "guard", "rank": connections
    state: str = "born"  # joining, joined, finished, failed, exits
    in_mpi: bool = False  # or has been: others do not wait for it to begin
    since: float = 0.0
    status: int | None = None  # how the process ended: below 0 a signal
    ended_at: float = 0.0
    exits: dict | None = None  # its sys.exit
    stopped: float | None = None  # since when
    hung_up: bool = False  # its process, not its guard
    place: str = ""  # its last answer: the line, ...
    at: str = ""  # ... the instruction of every call on its stack
    answered: bool = True
    same: int = 0  # how many looks have found it there
    heard: float = 0.0  # when it last said where it is in its run
    step: int | None = None  # the steps of training that are done
    begins: int | None = None  # the first of these that it told
    trained: bool = False  # its elastic.run is over
    first: bool = False  # and in it the rank was the group's number 0
    heals: float | None = None  # since when it makes a new group after a death

    def __str__(self):
        return f"rank {self.name} (process {self.pid} on {self.host})"


# What a line says, and what else stands in it.
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
    """Returns the line. Raises ValueError unless it says one of SAID, with its values."""
    what = line.get("say")
    if not isinstance(what, str) or what not in SAID:
        raise ValueError(f"it says {what!r:.100}")
    for name, kind in SAID[what].items():
        if not isinstance(line.get(name, ...), kind):
            raise ValueError(f"{name} of {what!r} is {line.get(name)!r:.100}")
    return line


def signal_name(number):
    """SIGKILL; "signal 40" for one of those that have only a number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Supervisor:
    """One run. `environment` is for mpiexec; then `run(mpiexec)` waits for the end."""

    def __init__(self, n, deadline_s=None, start_s=60.0, one_host=True, say=sys.stderr.write,
                 silence_s=0.0, heal=False):
        self.n, self.deadline_s, self.start_s, self._write = n, deadline_s, start_s, say
        self.silence_s, self._suspected = silence_s, False
        self.failure = None  # what ended the run, in words without numbers of processes
        self.failed = []  # the ranks that did
        self.interrupted = False
        self.heal, self._lost = heal, []  # whether ranks may be lost; those that are
        token = new_token()
        self._door = Door(token, one_host, backlog=4096)
        addresses = "+".join(["127.0.0.1"] if one_host else own_addresses())
        port = self._door.listener.getsockname()[1]
        self.environment = {SUPERVISOR: f"{addresses},{port},{token}"}
        self._links = {}  # Lines -> its Rank; None before its first line
        self._traces, self._phase = set(), 0  # files that MPI may leave; when they were looked for
        self._n_strangers = 0  # that the ranks have turned away
        self.ranks = []
        self.status = None  # of the run, once it is decided
        self._first = self._looked = None
        self._pause_s = max((deadline_s or 0) / LOOKS, ANSWER_S)

    # -- the loop

    def run(self, child, wake):
        """The status of the run. child: mpiexec, a Popen; wake: a socket to which a byte is written
        when a child process ends (signal.set_wakeup_fd)."""
        while self.status is None and child.poll() is None:
            self._hear(0.25, wake)
            self._judge(time.monotonic())
            self._note_traces(child)
        if self.status is None and child.returncode < 0:
            self._blame(how := f"mpiexec (process {child.pid}) was killed by "
                        f"{signal_name(-child.returncode)}", [])
            self._end_with(f"{how}: this ends all ranks", 128 - child.returncode)
        if self.status is None:  # mpiexec has ended: hear the last words
            until = time.monotonic() + KILLED_S
            while self._hear(0.05) or (self._cut_off(child) and time.monotonic() < until):
                pass
            self._judge(time.monotonic() + STARTING_S)
        if self.status is None and (ranks := self._cut_off(child)):
            self._fail(ranks, "mpiexec ended, with status 0, in the middle of the script. Is a "
                       "host gone?", 1)
        if self.status is None:
            return child.returncode
        self.end(child)
        return self.status

    def _cut_off(self, child):
        """Those that mpiexec has left behind, though it ended well: Open MPI's does so when a host
        is gone."""
        return [] if child.returncode else [
            r for r in self.ranks if r.status is None and r.state in ("joining", "joined")]

    def interrupt(self, child, patience_s):
        """End all ranks in mid-run; for so long they may end by themselves."""
        self.interrupted = True
        until = time.monotonic() + patience_s
        self._traces |= traces.of(child.pid)
        while child.poll() is None and time.monotonic() < until:
            self._traces |= traces.of(child.pid)  # a rank that starts makes files still
            time.sleep(0.02)
        self.end(child)

    def end(self, child):
        """End all ranks, then mpiexec; and remove what MPI leaves then."""
        time.sleep(PASSED_ON_S)
        if child.poll() is None:
            self._traces |= traces.of(child.pid)
        hydra = any(rank.hydra for rank in self.ranks)
        for rank in self.ranks:
            self._tell(rank, "guard", ask="end")
            if "guard" not in rank.links:  # killed; its rank may live
                self._tell(rank, "rank", ask="end")
        # MPICH's mpiexec would say in ten lines that ranks ended badly. Open MPI's has folders to
        # remove.
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
        """Once while ranks start and once when all are in MPI: mpiexec may be killed later."""
        in_mpi = all(rank.state not in ("born", "joining") for rank in self.ranks)
        phase = 2 if len(self.ranks) >= self.n and in_mpi else 1 if self.ranks else 0
        if phase > self._phase:
            self._phase = phase
            self._traces |= traces.of(child.pid)

    def close(self):
        """Hang up. A guard or a rank that still lives ends then."""
        for each in (self._door, *self._links):
            each.close()
        if n := self._door.n_turned_away + self._n_strangers:
            self._write(f"minidl run: connections of other programs that were turned away: {n}\n")

    def _all_ended(self, until):
        """Whether all guards have gone until then."""
        while guards := [r.links["guard"] for r in self.ranks if "guard" in r.links]:
            ready, _, _ = select.select(guards, [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return False
            for lines in ready:
                self._read(lines)
        return True

    def _tell(self, rank, which, **line):
        if which in rank.links:
            try:
                rank.links[which].say(**line)
            except OSError:
                rank.links.pop(which)

    def _hear(self, wait_s, *wakes):
        """Hear what comes within this time. Returns whether a connection had something."""
        ready = select.select([*wakes, *self._door.sockets(), *self._links], [], [], wait_s)[0]
        for lines in self._door.callers():
            self._links[lines] = None
        for wake in [each for each in ready if each in wakes]:
            wake.recv(4096)
        for lines in [each for each in ready if each in self._links]:
            self._read(lines)
        return bool(ready)

    def _read(self, lines):
        for line in lines.heard():
            try:
                self._heard(lines, checked(line))
            except ValueError as error:
                lines.over = f"has sent a line that is not ours: {error}"
                break
        if lines.over:
            self._closed(lines, self._links.pop(lines))

    def _heard(self, lines, line):
        rank, now, what = self._links[lines], time.monotonic(), line["say"]
        if (rank is None) != (what in ("guard", "born")):
            raise ValueError(f"{what} is not said then")
        if rank is None:  # its first line
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
            if rank.begins is None or rank.trained:  # its script may train twice
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
        for rank in self.ranks:
            if rank in self._lost:  # another process has its number
                continue
            if rank.name == line["rank"] is not None or (
                    line["rank"] is None and rank.host == line["host"] and which not in rank.links):
                return rank
        name = "?" if line["rank"] is None else line["rank"]
        self.ranks.append(Rank(name, line["host"], hydra=line["hydra"], since=time.monotonic(),
                               heard=time.monotonic()))
        return self.ranks[-1]

    def _closed(self, link, rank):
        link.close()
        if rank is not None:
            if link.over != CLOSED:
                self._write(f"minidl run: {rank} {link.over}; this connection is closed\n")
            rank.hung_up |= link is rank.links.get("rank")
            if self.heal and rank.status is None and link is rank.links.get("guard"):
                rank.status, rank.ended_at = -signal.SIGKILL, time.monotonic()  # with its guard
            rank.links = {which: it for which, it in rank.links.items() if it is not link}

    # -- what it all means

    def _judge(self, now):
        """Decide whether the run has failed: set the status, and say why."""
        if self.status is not None:
            return
        # Not before all have ended: MPICH's mpiexec kills the others, without a word, if one leaves
        # that has not gone through MPI_Finalize, as some do that end while others wait.
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
        # who has not come to world() yet may be at its start: ranks start one after the other
        starting = len(self.ranks) < self.n or any(
            rank.state == "born" for rank in self.ranks if rank not in left)
        together_s = STARTING_S if starting else TOGETHER_S
        late = any(now - (r.ended_at or r.since) >= together_s for r in left)
        if crashed:
            self._fail(*self._how(crashed[0]), 128 - crashed[0].status)
        elif left and len(left) == self.n:  # all of them: each ends by itself
            if all(rank.status is not None for rank in left):
                self._blame(self._how(left[0])[1], left)
                self.status = max(self._status_of(rank) for rank in left)
        elif left and late:
            rank, how = self._how(left[0])
            self._fail(rank, how, self._status_of(rank) or 1,
                       ", but not on all ranks: it ends them all")
        elif self._first and len(self.ranks) < self.n and now - self._first > self.start_s:
            missing = sorted(set(range(self.n)) - {rank.name for rank in self.ranks})
            self._fail([Rank(name) for name in missing], f"no word in {self.start_s:g} s since the "
                       f"first rank started. Are {sys.executable} and {RANK} on every host?", 1)
        elif not left:
            if self.silence_s and self._first and len(self.ranks) >= self.n:  # more: replacements
                self._listen(now)
            if self.deadline_s and self.status is None:
                self._look(now)

    def _judge_absent(self):
        """A rank that ends well, and never comes to world(): all that do wait for it."""
        absent = [rank for rank in self.ranks if rank.state == "finished" and not rank.in_mpi]
        waiting = [rank.name for rank in self.left() if rank.state == "joining"]
        if absent and waiting:
            how = f"before world(), where {in_words(sorted(waiting, key=str))} would wait for ever"
            self._fail(absent[0] if len(absent) == 1 else absent, f"ended its script {how}", 1)

    def _judge_lost(self, left, now):
        """In a run that heals: the ranks that left badly, without those that the others can do
        without. MPI's own end is not waited for: after a death it may hang."""
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
        """All that are left have ended their script. By custom the first rank of a group writes the
        results: a run whose first rank has died after elastic.run has not done its work."""
        if not self._lost or any(rank.first for rank in others):
            self.status = 0
            return
        how = ("the first rank of the group has died after elastic.run, and nobody else does what "
               "it had left to do, such as writing the result")
        self._blame(how, self._lost)
        self._end_with(how, 1)

    def _judge_healing(self, others, now):
        """Ranks can heal when all have been in world(), and they have `start_s` for it."""
        early = [rank for rank in self._lost if rank.state in ("born", "joining")]
        if early and now - early[0].ended_at > STARTING_S and any(
                rank.state in ("born", "joining") for rank in others):
            self._fail(early[0], "is missing: ranks go on without one only after world()", 1)
        healing = [rank for rank in others if rank.heals]
        if self.status is None and healing and (
                now - max(rank.heals for rank in healing) > self.start_s):
            self._late(f"the ranks have not healed within {self.start_s:g} s (--start-limit)",
                       healing)

    def left(self):
        """The ranks, without those that a run that heals has lost."""
        return [rank for rank in self.ranks if rank not in self._lost]

    def _left_badly(self, rank, now):
        if rank.state == "exits":
            return True
        # What a rank said last may come after what its guard says: all has come when it hangs up.
        known = rank.status is not None and (
            rank.hung_up or now - rank.ended_at > TOGETHER_S)
        return known and (rank.status != 0 or rank.state != "finished")

    def _status_of(self, rank):
        return rank.exits["status"] if rank.exits else rank.status

    def _how(self, rank):
        """(rank, how it left in words)."""
        if rank.exits and not (rank.status or 0) < 0:
            return rank, f"called sys.exit({rank.exits['code']}) at {rank.exits['line']}"
        when = {"born": "before world()", "joining": "in world()", "joined": "in the middle of its "
                "script", "finished": "after its script", "exits": "after sys.exit"}[rank.state]
        if rank.status < 0:
            name = signal_name(-rank.status)
            why = ": out of memory?" if name == "SIGKILL" else ""
            return rank, f"was killed by {name} {when}{why}"
        return rank, (f"ended {when} with status {rank.status} and without a word, by os._exit or "
                      "in a library")

    def _listen(self, now):
        """Has a rank done a step lately, or anything else that it tells? Else: who, and where?"""
        ranks = self.left()
        training = [rank for rank in ranks if not rank.trained and rank.state != "finished"]
        silent_s = now - max((rank.heard for rank in ranks), default=now)
        patience_s = self.silence_s
        if not any(rank.step is not None for rank in ranks):  # they import, build, load
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
        """Every so often: who is where, and does anybody move?"""
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
            self._late(f"a rank has stood still for {self.deadline_s:g} s (--deadline)", stopped)
        elif all(rank.same >= LOOKS + LATER for rank in busy):
            self._late(f"no rank has moved for {self.deadline_s:g} s (--deadline)", busy)

    def _late(self, what, ranks):
        lines = [what]
        for rank in ranks:
            where = f"is at {rank.place}"
            if not rank.answered:
                where = f"does not answer: in C code? It was at {rank.place or 'an unknown line'}"
            if rank.stopped:
                where = "was stopped by a signal"
            lines.append(f"  {rank} {where}")
        self._blame(what, ranks)
        self._end_with("\n".join(lines), 1)

    def _fail(self, ranks, how, status, more=""):
        one = isinstance(ranks, Rank)
        who = ranks if one else in_words([rank.name for rank in ranks]) + ":"
        self.failure, self.failed = how, [ranks] if one else ranks
        self._end_with(f"{who} {how}{more}", status)

    def _blame(self, how, ranks):
        """What ended the run: the first that is said of it counts."""
        if self.failure is None:
            self.failure, self.failed = how, ranks

    def _end_with(self, text, status):
        self.status = status
        self._write(f"minidl run: {text}\n")
