"""Lines between processes: the right rank gets them, and only this job's are read."""

import socket

import pytest

from minidl.comm import simulate
from minidl.comm.observe.side_channel import Channel, read_line, send_line


@pytest.fixture
def channels():
    """Two channels of one job, in one process."""
    made = simulate(2, Channel)
    yield made
    for channel in made:
        channel.listener.close()


def test_a_line_comes_with_its_sender_and_can_be_answered(channels):
    for me, other in (channels, channels[::-1]):
        with me.connect(other.rank, say="state?") as connection:
            answer_to, line = other.accept()
            assert (line["say"], line["from"]) == ("state?", me.rank)
            with answer_to:
                send_line(answer_to, {"n": [1, 2]})
            assert read_line(connection) == {"n": [1, 2]}


@pytest.mark.parametrize("line", [{"say": "state?", "from": 0}, {"token": "0" * 16}, ["token"], 7])
def test_a_stranger_is_not_answered(channels, line):
    with socket.create_connection(channels[1].listener.getsockname()) as stranger:
        send_line(stranger, line)
        with pytest.raises(ValueError, match="not of this job"):
            channels[1].accept()
        assert stranger.recv(1) == b"", "it hangs up"


def test_who_refuses_is_reached_no_more(channels):
    channels[1].refuse()
    with pytest.raises(OSError):
        channels[0].connect(1, say="state?")
