"""Who waits for whom, and which ranks can never go on.   Test: tests/comm/observe/test_waits.py

Every rank counts what it does: sends begun and receives posted, by peer and tag, and collectives
begun, by group. A rank that waits does so until a counter of another rank has reached a value:

    rank 0 in its 3rd recv from rank 1      until rank 1 has begun its 3rd send to rank 0
    rank 1 in a send                        until its receive is posted
    rank 2 in the 7th collective            until every member has begun its 7th

Nobody waits in this sense for a message that is on its way, however slow the network: its send is
counted. A rank is *stuck* if it waits for a rank that is stuck or has ended. That definition is
circular, so we look for the largest set that fulfils it: suspect all ranks that wait, then clear
those that wait only for ranks that are not suspects, until nothing changes. If the same set remains
at a second look, in the same waits, it can never go on: a deadlock, not a slow rank. A wait for a
message from anybody needs only one of the ranks (the AND-OR model of Knapp 1987).

Used by: lookout.py, watch.py, scheduler.py
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Need:
    """Until rank `peer`'s counter `key` is at least `count`; ranks here are world ranks."""

    peer: int
    key: str
    count: int


@dataclass(frozen=True)
class Wait:
    """One thread's wait. No two waits of a rank have the same `serial`.

    needs    all must be fulfilled, or one of them if `any_of`; none: an event of its own rank"""

    what: str
    needs: tuple = ()
    any_of: bool = False
    thread: str = "main"
    line: str = "an unknown line"
    serial: int = 0
    seconds: float = 0.0


@dataclass
class State:
    """What a rank is doing. `computes_at`: its main thread does not wait, and was seen there."""

    rank: int
    counters: dict = field(default_factory=dict)
    waits: list = field(default_factory=list)
    computes_at: str = ""
    last: str = ""  # its last collective
    ended: bool = False
    silent: str = ""  # why it did not answer
    host: str = ""
    steps: int = 0  # that it has told of by stepped(), and what it computed in them
    computed_s: float = 0.0


def stuck(states):
    """The ranks of {rank: State} that can never go on, ended ones aside; a sorted list."""
    suspects = {r for r, s in states.items() if s.ended or (s.waits and not s.computes_at)}
    changed = True
    while changed:
        cleared = {r for r in suspects if not states[r].ended and _can_go_on(r, states, suspects)}
        suspects -= cleared
        changed = bool(cleared)
    return sorted(r for r in suspects if not states[r].ended)


def _can_go_on(rank, states, suspects):
    """Whether a rank that is no suspect may still wake some thread of this rank."""
    outward = [wait for wait in states[rank].waits if wait.needs]
    return not outward or any(not _hopeless(wait, states, suspects) for wait in outward)


def _hopeless(wait, states, suspects):
    hopeless = [n.peer in suspects and is_open(n, states) for n in wait.needs]
    return all(hopeless) if wait.any_of else any(hopeless)


def is_open(need, states):
    """Whether `need` is not fulfilled yet, as far as is known."""
    state = states[need.peer]
    if state.counters.get(need.key, 0) >= need.count:
        return False
    # A receive from anybody takes it, though no receive from this rank was posted.
    return not any(wait.any_of and need.key in _taken_by(wait) for wait in state.waits)


def _taken_by(wait):
    """The counters that this receive from anybody would count up, one for each sender."""
    return {received(n.key.split()[1], n.peer, n.key.split()[3]) for n in wait.needs}


def sent(group, dst, tag):
    """The counter of sends begun; all in a key is known on both sides."""
    return f"sent {group} {dst} {tag}"


def received(group, src, tag):
    return f"received {group} {src} {tag}"


def signalled(window, kind):
    return f"signalled {window} {kind}"


def begun(group):
    return f"collectives {group}"


def cycle(states, ranks):
    """The `path` of stuck ranks from the first of them on."""
    waits_for = {}
    for rank in ranks:
        needs = [need for wait in states[rank].waits for need in wait.needs]
        waits_for[rank] = next(need.peer for need in needs if is_open(need, states)
                               and (need.peer in ranks or states[need.peer].ended))
    return path(ranks[0], waits_for)


def path(rank, waits_for):
    """[0, 1, 0]: a rank, the rank that it waits for ({rank: rank}), and so on, up to one that waits
    for nobody; or, where a rank comes again, the circle alone."""
    seen = [rank]
    while rank in waits_for:
        rank = waits_for[rank]
        seen.append(rank)
        if seen.index(rank) < len(seen) - 1:
            return seen[seen.index(rank) :]
    return seen


def arrows(ranks):
    return " -> ".join(f"rank {rank}" for rank in ranks)


def describe(states):
    """The report's lines: one for each wait, and one for each rank that does not wait."""
    lines = []
    for rank, state in sorted(states.items()):
        after = f" (its last collective: {state.last})" if state.last else ""
        if state.ended:
            lines.append(f"rank {rank} has ended{after}")
        elif state.silent:
            lines.append(f"rank {rank} {state.silent}{after}")
        elif state.computes_at:
            seen = f"has not arrived, last seen at {state.computes_at}"
            lines.append(f"rank {rank} computes: {seen}{after}")
        for wait in state.waits:
            who = f"rank {rank}" + ("" if wait.thread == "main" else f" ({wait.thread})")
            lines.append(f"{who} waits {wait.what}, at {wait.line}, for {wait.seconds:.1f} s")
    return "\n".join("  " + line for line in lines)
