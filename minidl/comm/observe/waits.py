"""Finds which rank waits for which rank, and which ranks can never continue.

Every rank has counters. For each peer and tag it counts the sends that it has begun, and the
receives that it has begun. For each group it counts the collectives that it has begun. A rank waits
until a counter of another rank reaches a value:

    rank 0 in its 3rd recv from rank 1      until rank 1 has begun its 3rd send to rank 0
    rank 1 in a send                        until the other rank has begun the receive
    rank 2 in the 7th collective            until every member has begun its 7th collective

If a rank waits for a message that is on its way, the rank is not stuck, even in a slow network. The
send is already counted. A rank is *stuck* if it waits for a rank that is stuck or has ended. This
definition is circular, so we find the largest set of ranks that fulfils it. First all waiting ranks
are suspects. If a rank has a wait that needs no suspect, this rank is no longer a suspect. We
repeat this until nothing changes. If a second check finds the same ranks in the same waits, these
ranks can never continue. This is a deadlock, not a slow rank. A wait for a message from any rank
needs only one of the ranks (the AND-OR model of Knapp 1987).

Test: tests/comm/observe/test_waits.py   Used by: lookout.py, watch.py, scheduler.py
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Need:
    """A condition for the end of a wait: the counter `key` of rank `peer` is at least `count`. All
    ranks in this file are world ranks."""

    peer: int
    key: str
    count: int


@dataclass(frozen=True)
class Wait:
    """One thread's wait. No two waits of a rank have the same `serial`.

    what     a text for the report
    needs    a tuple of Needs. The wait ends when all needs are fulfilled. If `any_of` is True, it
             ends when one need is fulfilled. If there are no needs, the thread waits for another
             thread of its rank
    line     file:line of the user's code
    seconds  the time since the wait was first seen"""

    what: str
    needs: tuple = ()
    any_of: bool = False
    thread: str = "main"
    line: str = "an unknown line"
    serial: int = 0
    seconds: float = 0.0


@dataclass
class State:
    """What a rank is doing.

    computes_at   file:line where the main thread was seen; "" if this thread waits or has ended
    last          the last collective of this rank, and its line
    silent        why the rank did not answer; "" if it answered
    steps         the number of steps that stepped() has ended
    computed_s    the seconds of computing in these steps"""

    rank: int
    counters: dict = field(default_factory=dict)
    waits: list = field(default_factory=list)
    computes_at: str = ""
    last: str = ""
    ended: bool = False
    silent: str = ""
    host: str = ""
    steps: int = 0
    computed_s: float = 0.0


def stuck(states):
    """Returns a sorted list of the ranks that can never continue. Ranks that have ended are not in
    the list. states: {rank: State}."""
    suspects = {r for r, s in states.items() if s.ended or (s.waits and not s.computes_at)}
    changed = True
    while changed:
        cleared = {r for r in suspects if not states[r].ended and _can_go_on(r, states, suspects)}
        suspects -= cleared
        changed = bool(cleared)
    return sorted(r for r in suspects if not states[r].ended)


def _can_go_on(rank, states, suspects):
    """Returns True if this rank is not stuck. It is not stuck if one of its waits can end without
    the help of a suspect. It is also not stuck if it waits for no other rank."""
    outward = [wait for wait in states[rank].waits if wait.needs]
    return not outward or any(not _hopeless(wait, states, suspects) for wait in outward)


def _hopeless(wait, states, suspects):
    hopeless = [n.peer in suspects and is_open(n, states) for n in wait.needs]
    return all(hopeless) if wait.any_of else any(hopeless)


def is_open(need, states):
    """Returns True if `need` is not fulfilled in these states."""
    state = states[need.peer]
    if state.counters.get(need.key, 0) >= need.count:
        return False
    # A peer that waits in recv_any() does not know the sender yet, so it has not increased the
    # counter. But its recv_any() may still fulfil the need.
    return not any(wait.any_of and need.key in _taken_by(wait) for wait in state.waits)


def _taken_by(wait):
    """wait: a receive from any rank. Returns the keys of the counters that this receive may
    increase, one key for each sender."""
    return {received(n.key.split()[1], n.peer, n.key.split()[3]) for n in wait.needs}


def sent(group, dst, tag):
    """Returns the key of a rank's counter of its sends to rank `dst` with this tag. Rank `dst` can
    compute the same key, because it knows the group, its own number and the tag."""
    return f"sent {group} {dst} {tag}"


def received(group, src, tag):
    return f"received {group} {src} {tag}"


def signalled(window, kind):
    return f"signalled {window} {kind}"


def begun(group):
    return f"collectives {group}"


def cycle(states, ranks):
    """Returns a list of stuck ranks, in which each rank waits for the next rank. See `path`. The
    search begins at ranks[0].

    ranks: the result of `stuck`."""
    waits_for = {}
    for rank in ranks:
        needs = [need for wait in states[rank].waits for need in wait.needs]
        waits_for[rank] = next(need.peer for need in needs if is_open(need, states)
                               and (need.peer in ranks or states[need.peer].ended))
    return path(ranks[0], waits_for)


def path(rank, waits_for):
    """Returns a list of ranks: `rank`, then the rank that it waits for, and so on. The list ends
    with a rank that waits for no other rank. If the list comes back to an earlier rank, only this
    circle is returned, such as [0, 1, 0].

    waits_for: {rank: the rank that it waits for}."""
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
    """Returns the text of the report. It has a line for each wait, and a line for each rank that
    does not wait."""
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
