"""Hand-made states of ranks: which of them can never go on."""

import pytest

from minidl.comm.observe.waits import (
    Need, State, Wait, begun, cycle, describe, received, sent, stuck,
)


def receiving(src, me, count=1):
    return Wait(f"for a message from rank {src}", (Need(src, sent("g", me, 0), count),))


def sending(dst, me, count=1):
    return Wait(f"to send to rank {dst}", (Need(dst, received("g", me, 0), count),))


def arriving(members, count):
    return Wait("to begin", tuple(Need(m, begun("g"), count) for m in members))


def from_anybody(others, me, counts):
    needs = tuple(Need(o, sent("g", me, 0), c) for o, c in zip(others, counts, strict=True))
    return Wait("for any message", needs, any_of=True)


def states(*waits, **more):
    """Rank r with waits[r]: a Wait, a list of them, 'computes' or 'ended'."""
    made = {}
    for r, wait in enumerate(waits):
        listed = wait if isinstance(wait, list) else [wait] if isinstance(wait, Wait) else []
        made[r] = State(r, more.get(f"counters{r}", {}), listed, ended=wait == "ended")
        if wait == "computes":
            made[r].computes_at = "train.py:7"
    return made


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_a_circle_of_receives_is_stuck_and_printed(n):
    s = states(*[receiving((r - 1) % n, r) for r in range(n)])
    assert stuck(s) == list(range(n))
    assert cycle(s, stuck(s)) == [0, *range(n - 1, -1, -1)]


def test_a_message_on_its_way_is_no_deadlock():
    # Both have sent and wait for what the other sent: large messages on a slow network.
    on_its_way = {f"counters{r}": {sent("g", 1 - r, 0): 1} for r in range(2)}
    assert stuck(states(receiving(1, 0), receiving(0, 1), **on_its_way)) == []
    # The second message is not sent yet.
    assert stuck(states(receiving(1, 0, 2), receiving(0, 1, 2), **on_its_way)) == [0, 1]
    # The receive of a large send is posted.
    posted = {"counters1": {received("g", 0, 0): 1}}
    assert stuck(states(sending(1, 0), receiving(0, 1), **posted)) == []
    # Other tags and other groups are other messages.
    for key in (sent("g", 0, 1), sent("h", 0, 0), received("g", 0, 0)):
        assert stuck(states(receiving(1, 0), receiving(0, 1), counters1={key: 1})) == [0, 1]


def test_who_waits_for_a_computing_rank_is_not_stuck():
    s = states(receiving(1, 0), "computes", receiving(0, 2))
    assert stuck(s) == []
    s[1].waits = [receiving(0, 1)]  # of its other thread: main may still send
    assert stuck(s) == []
    assert "rank 1 computes: has not arrived, last seen at train.py:7" in describe(s)


def test_who_waits_for_an_ended_rank_is_stuck_and_so_is_who_waits_for_that_one():
    s = states(receiving(2, 0), receiving(0, 1), "ended")
    assert stuck(s) == [0, 1]
    assert cycle(s, [0, 1]) == [0, 2]
    # What it sent before its end is on its way.
    assert stuck(states(receiving(1, 0), "ended", counters1={sent("g", 0, 0): 1})) == []


def test_a_rank_of_which_nothing_is_known_may_still_act():
    s = states(receiving(1, 0), "unknown")
    s[1].silent = "does not answer"
    assert stuck(s) == [] and "rank 1 does not answer" in describe(s)


def test_a_collective_waits_for_all_members():
    late = {"counters2": {begun("g"): 3}}
    arrived = {f"counters{r}": {begun("g"): 4} for r in (0, 1)}
    waits = [arriving([0, 1, 2], 4)] * 2
    assert stuck(states(*waits, receiving(0, 2), **late, **arrived)) == [0, 1, 2]
    assert stuck(states(*waits, "computes", **late, **arrived)) == []
    assert stuck(states(*waits, "ended", **late, **arrived)) == [0, 1]
    late["counters2"][begun("g")] = 4
    assert stuck(states(*waits, receiving(0, 2), **late, **arrived)) == []


def test_a_receive_from_anybody_hopes_for_any_of_them():
    assert stuck(states(from_anybody([1, 2], 0, [1, 1]), receiving(0, 1), "computes")) == []
    s = states(from_anybody([1, 2], 0, [1, 1]), receiving(0, 1), receiving(1, 2))
    assert stuck(s) == [0, 1, 2]
    s[2].counters[sent("g", 0, 0)] = 1
    assert stuck(s) == []
    # and it takes the send of any
    assert stuck(states(from_anybody([1, 2], 0, [1, 1]), sending(0, 1), receiving(0, 2))) == []


def test_one_thread_that_can_go_on_may_wake_the_others():
    own = Wait("for an event of its own rank")
    assert stuck(states([own, receiving(1, 0)], receiving(0, 1))) == [0, 1]
    assert stuck(states([own, receiving(2, 0)], receiving(0, 1), "computes")) == []
    assert stuck(states([receiving(1, 0), receiving(2, 0)], receiving(0, 1), "computes")) == []
    assert stuck(states(own, receiving(0, 1))) == []  # a thread that nobody watches may set it
