"""minidl run --restarts: ranks that fail are started again, unless it is the script that fails.

    attempt     ranks from step   to step   seconds    failed  what ended it
          1         4         0        87      31.0    rank 2  was killed by SIGKILL in the ...
          2         4        50       100      17.2         -  done

What ends an attempt, supervisor.py says in a sentence; elastic.run (elastic/restart.py) goes on
from the newest snapshot. The script sees MINIDL_ATTEMPT, 1, 2, ...: to say it, not to compute by.

    the same step fails twice in the same way      a bug, not a fault: no more attempts. Addresses,
                                                   process numbers and times may differ
    a rank has not started                         its place is gone: without it, then with all
    a host of --hosts does not answer              its places are gone until it does (hosts.py)
    the same rank fails twice running, at          its place is bad: without it, if --min-ranks
    different steps                                allows, then with all

Fewer ranks than --min-ranks are not started. A script without elastic.run begins anew.
Source: torchrun's --max-restarts and --nnodes min:max (PyTorch), which has no rule for a bug: it
spends all restarts.
Test: tests/cli/test_restarts.py   Used by: launcher.py
"""

import re
import sys
import time
from typing import NamedTuple

from minidl.text import in_words


class Attempt(NamedTuple):
    """How one start of all ranks went. step: that was being done, None before training; failed:
    the ranks that failed; absent: how many did not start."""

    n: int
    begins: int | None
    step: int | None
    seconds: float
    how: str
    failed: tuple
    absent: int
    status: int


# Numbers of ranks and processes; what tells a time; addresses of objects and ports; names that
# Python makes for temporary files; numbers of 9 digits and more (an id, a time). Other numbers
# stay: shapes, line numbers, errno.
DIFFERS = re.compile(
    r"\b(?:rank|ranks|process|pid|thread)[ =:]*\d+|"
    r"\d\d\d\d-\d\d-\d\d|\d+:\d\d:\d\d(?:\.\d+)?|"
    r"\b\d+(?:\.\d+)?(?:e[-+]?\d+)? ?(?:s|ms|us|ns|min|seconds?)\b|"
    r"\b0x[0-9a-fA-F]+|(?<=\d):\d{4,5}\b|"
    r"\btmp[a-z0-9_]{8}\b|\b\d{9,}(?:\.\d+)?")
GOING_S = 1.0  # a host that answers, but starts nothing, may be on its way down


def until_done(start, n, least, restarts, say=sys.stderr.write, room=None):
    """The status of the run. start(n, number): one attempt on n ranks, (status, Supervisor).
    room(): for how many ranks there are places now; None: for n."""
    past = []

    def startable():
        return min(n - lost_places(past, n - least), n if room is None else room())

    if (ranks := startable()) < least:
        say(too_few(ranks, n, least))
        return 1
    while True:
        begin = time.monotonic()
        status, supervisor = start(ranks, len(past) + 1)
        past.append(attempt_of(ranks, status, supervisor, time.monotonic() - begin))
        if status == 0 or supervisor.interrupted:
            break
        if not restarts:
            return status
        if is_bug(past):
            say("minidl run: the same step failed twice in the same way, so a third time would "
                "not help: this is a bug, not a fault\n")
            break
        if len(past) > restarts:
            say(f"minidl run: no restart is left of {restarts} (--restarts)\n")
            break
        if room is not None and past[-1].absent == past[-1].n:
            time.sleep(GOING_S)
        if (ranks := startable()) < least:
            say(too_few(ranks, n, least))
            break
        place = "" if past[-1].step is None else f" at step {past[-1].step}"
        say(f"minidl run: attempt {len(past)} ended{place}; starting {ranks} ranks again\n")
    if len(past) > 1:
        say(table(past))
    return past[-1].status


def too_few(ranks, n, least):
    return f"minidl run: {ranks} of {n} ranks could be started, --min-ranks is {least}\n"


def attempt_of(n, status, supervisor, seconds):
    ranks, left = supervisor.ranks, supervisor.left()
    steps = [rank.step for rank in supervisor.failed if rank.step is not None] or [
        rank.step for rank in left if rank.step is not None]
    behind = min if left else max  # healed until nobody was left: the step of the last one
    begins = [rank.begins for rank in ranks if rank.begins is not None]
    how = "done" if status == 0 else supervisor.failure or f"mpiexec ended with status {status}"
    return Attempt(n, min(begins, default=None), behind(steps, default=None), seconds, how,
                   tuple(rank.name for rank in supervisor.failed), max(0, n - len(ranks)), status)


def is_bug(past):
    """Whether the last two attempts failed alike."""
    if len(past) < 2:
        return False
    before, last = past[-2:]
    if last.absent == last.n and any(a.step is not None for a in past):
        return False  # mpiexec started nobody where there was a run: a host is going, and not gone
    return (before.step, alike(before.how), before.status) == (
        last.step, alike(last.how), last.status)


def alike(how):
    """The sentence without what differs when the same thing happens again."""
    return re.sub(DIFFERS, "#", how)


def lost_places(past, spare):
    """How many ranks fewer the next attempt has than it could; `spare` may be missing."""
    if past and 0 < past[-1].absent < past[-1].n:  # of none that started mpiexec is to blame
        return past[-1].absent
    twice = len(past) > 1 and past[-2].n == past[-1].n and len(past[-1].failed) == 1
    return int(twice and spare > 0 and past[-2].failed == past[-1].failed)


def table(past):
    """All attempts, a line each."""
    rows = [("attempt", "ranks", "from step", "to step", "seconds", "failed")]
    rows += [(i, a.n, a.begins, a.step, f"{a.seconds:.1f}",
              in_words(sorted(a.failed, key=str)) if a.failed else None)
             for i, a in enumerate(past, 1)]
    hows = ["what ended it", *(a.how for a in past)]
    return "".join("".join(f"{'-' if cell is None else cell:>10}" for cell in row) + f"  {how}\n"
                   for row, how in zip(rows, hows, strict=True))
