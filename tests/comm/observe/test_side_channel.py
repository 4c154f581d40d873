"""Lines between processes: the right rank gets them, and only this job's are read."""

import select
import time

import pytest

from minidl.comm import simulate
from minidl.comm.observe import door
from minidl.comm.observe.side_channel import Channel


@pytest.fixture
def channels():
    """Two channels of one job, in one process."""
    made = simulate(2, Channel)
    yield made
    for channel in made:
        channel.door.close()


def caller_of(channel, wait_s=5.0):
    """(Lines, line) of the first that the door lets in; None if it lets in nobody."""
    until = time.monotonic() + wait_s
    while time.monotonic() < until:
        select.select(channel.door.sockets(), [], [], 0.05)
        for lines in channel.door.callers():
            return lines, lines.answer()


def test_a_line_comes_with_its_sender_and_can_be_answered(channels):
    for me, other in (channels, channels[::-1]):
        with me.connect(other.rank, say="state?") as connection:
            answer_to, line = caller_of(other)
            assert (line["say"], line["from"]) == ("state?", me.rank)
            with answer_to:
                answer_to.say(n=[1, 2])
            assert connection.answer() == {"n": [1, 2]}


def test_what_opens_one_ranks_door_does_not_open_another(channels):
    """So a line to one rank cannot be played back to the next."""
    channels[0]._tokens[1] = channels[0]._tokens[0]
    with channels[0].connect(1, say="state?") as connection:
        assert caller_of(channels[1], 0.3) is None
        with pytest.raises(ValueError, match=door.CLOSED):
            connection.answer()
    assert channels[1].door.n_turned_away == 1


def test_who_refuses_is_reached_no_more(channels):
    channels[1].door.refuse()
    with pytest.raises(OSError):
        channels[0].connect(1, say="state?")
