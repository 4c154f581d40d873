"""minidl run --restarts: starts failed ranks again, unless the failure is a bug in the script.

    attempt     ranks from step   to step   seconds    failed  what ended it
          1         4         0        87      31.0    rank 2  was killed by SIGKILL in the ...
          2         4        50       100      17.2         -  done

supervisor.py writes the sentence in the column "what ended it". elastic.run (elastic/restart.py)
continues from the newest snapshot. The script can read the number of the attempt, 1, 2, ..., from
MINIDL_ATTEMPT. It may print the number, but its results must not depend on the number.

    what happened                                  what the next attempt does
    the same step fails twice in the same way      there is no next attempt: this is a bug, not a
                                                   fault. The messages of the two failures may
                                                   differ in addresses, process numbers and times
    some ranks have not started                    it runs without these ranks. The attempt after it
                                                   runs with all ranks
    a host of --hosts does not answer              it has fewer ranks, until the host answers
                                                   (hosts.py)
    the same rank fails twice in a row, at         it has one rank less, if --min-ranks allows this.
    different steps                                The attempt after it runs with all ranks

The run ends if fewer ranks than --min-ranks can start. A script without elastic.run starts again
from the beginning.
Source: torchrun's --max-restarts and --nnodes min:max (PyTorch). torchrun has no rule for a bug: it
uses up all restarts.
Test: tests/cli/test_restarts.py   Used by: launcher.py
"""

import re
import sys
import time
from typing import NamedTuple

from minidl.text import in_words


class Attempt(NamedTuple):
    """The result of one start of all ranks.

    n:       how many ranks should start
    begins:  the first step of training, or None
    step:    the step in which the attempt ended, or None if no rank was training
    seconds: how long the attempt ran
    how:     what ended the attempt, in words
    failed:  the numbers of the ranks that failed
    absent:  how many ranks did not start
    status:  the exit status"""

    n: int
    begins: int | None
    step: int | None
    seconds: float
    how: str
    failed: tuple
    absent: int
    status: int


# The parts of a message that may differ when the same bug happens again. These are numbers of ranks
# and processes, times, addresses of objects and ports, Python's names of temporary files, and
# numbers of 9 or more digits (an id, a time). Other numbers, such as shapes, line numbers and
# errno, must be equal.
DIFFERS = re.compile(
    r"\b(?:rank|ranks|process|pid|thread)[ =:]*\d+|"
    r"\d\d\d\d-\d\d-\d\d|\d+:\d\d:\d\d(?:\.\d+)?|"
    r"\b\d+(?:\.\d+)?(?:e[-+]?\d+)? ?(?:s|ms|us|ns|min|seconds?)\b|"
    r"\b0x[0-9a-fA-F]+|(?<=\d):\d{4,5}\b|"
    r"\btmp[a-z0-9_]{8}\b|\b\d{9,}(?:\.\d+)?")
GOING_S = 1.0  # seconds to wait if a host answers but starts no rank: it may be shutting down


def until_done(start, n, least, restarts, say=sys.stderr.write, room=None):
    """Starts attempts until one succeeds or no more are allowed. Returns the exit status.

    start:    a function. start(n, number) runs one attempt on n ranks, and returns (status,
              Supervisor)
    n:        how many ranks are wanted
    least:    the smallest number of ranks to start
    restarts: how many more attempts are allowed
    say:      a function. say(text) prints a text for the user
    room:     a function. room() returns how many ranks the hosts can take now. If room is None,
              n ranks can always start"""
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
            say("minidl run: the same step failed twice in the same way. This is a bug, so another "
                "start does not help\n")
            break
        if len(past) > restarts:
            say(f"minidl run: all restarts are used: {restarts} (--restarts)\n")
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
    return (f"minidl run: {ranks} of {n} ranks could be started, but at least {least} are wanted "
            "(--min-ranks)\n")


def attempt_of(n, status, supervisor, seconds):
    """Returns the Attempt on n ranks. Its values come from `supervisor`."""
    ranks, left = supervisor.ranks, supervisor.left()
    steps = [rank.step for rank in supervisor.failed if rank.step is not None] or [
        rank.step for rank in left if rank.step is not None]
    # The attempt ended in the step of the slowest rank. With --heal all ranks may be lost. Then
    # the attempt ended in the largest step that a lost rank reported.
    behind = min if left else max
    begins = [rank.begins for rank in ranks if rank.begins is not None]
    how = "done" if status == 0 else supervisor.failure or f"mpiexec ended with status {status}"
    return Attempt(n, min(begins, default=None), behind(steps, default=None), seconds, how,
                   tuple(rank.name for rank in supervisor.failed), max(0, n - len(ranks)), status)


def is_bug(past):
    """Returns True if the last two attempts failed at the same step in the same way."""
    if len(past) < 2:
        return False
    before, last = past[-2:]
    if last.absent == last.n and any(a.step is not None for a in past):
        return False  # ranks started earlier, but no rank starts now: a host may be shutting down
    return (before.step, alike(before.how), before.status) == (
        last.step, alike(last.how), last.status)


def alike(how):
    """Returns the sentence `how` with some parts replaced by "#": the parts that may differ when
    the same bug happens again. how: what ended an attempt, in words."""
    return re.sub(DIFFERS, "#", how)


def lost_places(past, spare):
    """Returns the number of ranks that the next attempt leaves out. spare: how many ranks may be
    left out."""
    if past and 0 < past[-1].absent < past[-1].n:  # if no rank started, mpiexec is the cause
        return past[-1].absent
    twice = len(past) > 1 and past[-2].n == past[-1].n and len(past[-1].failed) == 1
    return int(twice and spare > 0 and past[-2].failed == past[-1].failed)


def table(past):
    """Returns a text with one line for each attempt."""
    rows = [("attempt", "ranks", "from step", "to step", "seconds", "failed")]
    rows += [(i, a.n, a.begins, a.step, f"{a.seconds:.1f}",
              in_words(sorted(a.failed, key=str)) if a.failed else None)
             for i, a in enumerate(past, 1)]
    hows = ["what ended it", *(a.how for a in past)]
    return "".join("".join(f"{'-' if cell is None else cell:>10}" for cell in row) + f"  {how}\n"
                   for row, how in zip(rows, hows, strict=True))
