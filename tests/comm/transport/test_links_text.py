"""A text and its network; what cannot be read is shown, with what was wanted."""

import re

import pytest

from minidl.comm.transport.links import Links
from minidl.comm.transport.links_text import parse


@pytest.mark.parametrize(
    "text, n, links",
    [
        ("1Gbit,50us", 4, Links.uniform(50e-6, 8e-9)),
        (" 2.5 Mbit/s, .5 ms", 1, Links.uniform(0.5e-3, 8 / 2.5e6)),
        ("800bit,0s", 2, Links.uniform(0.0, 0.01)),
        (
            "nodes=2,intra=10Gbit,5us,inter=1Gbit,50us",
            5,
            Links.nodes([[0, 1, 2], [3, 4]], (5e-6, 8e-10), (50e-6, 8e-9)),
        ),
        (
            "inter=1Gbit,50us,nic=rank,nodes=1+3,straggler=2:3+0:1.5,intra=1Tbit,20ns,0-3=1kbit,1s",
            4,
            Links.nodes(
                [[0], [1, 2, 3]],
                *((20e-9, 8e-12), (50e-6, 8e-9), "rank"),
                pairs={(0, 3): (1.0, 8e-3)},
                straggler={2: 3.0, 0: 1.5},
            ),
        ),
        ("nodes=1,intra=8bit,1s,inter=8bit,2s", 2, Links.nodes([[0, 1]], (1.0, 1.0), (2.0, 1.0))),
    ],
)
def test_a_text_and_its_network(text, n, links):
    assert parse(text, n) == links
    assert parse(str(links), n) == links


LINKS = "intra=1Gbit,5us,inter=1Gbit,5us"


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "wanted a rate and a latency such as 1Gbit,50us; got ''"),
        ("1Gbit", "wanted a rate and a latency"),
        ("50us", "wanted a rate and a latency"),
        ("1gbit,5us", "wanted a rate and a latency"),
        ("0Gbit,5us", "wanted a rate and a latency"),
        ("1Gbit,5us,7us", "wanted a rate and a latency"),
        ("1Gbit,50us,2Gbit,5us", "got a link for all pairs twice"),
        (f"nodes=2,{LINKS},intra=1Gbit,5us", "got intra= twice"),
        ("nodes=2", "needs intra= and inter="),
        (f"nodes=2,{LINKS},1Gbit,5us", "must not have a link for all pairs"),
        (LINKS, "without nodes="),
        ("1Gbit,5us,nic=rank", "without nodes="),
        (f"nodes=5,{LINKS}", "nodes=5 wants more nodes than there are ranks"),
        (f"nodes=3+2,{LINKS}", "links have 5 ranks; got 4"),
        (f"nodes=0,{LINKS}", "their sizes, such as 3+1; got '0'"),
        (f"nodes=2,{LINKS},nic=x", "got 'x'"),
        ("1,50us", "'1' has no unit; wanted a rate such as 1Gbit or a latency such as 50us"),
        ("1Gbit,50", "'50' has no unit"),
        ("1Gbit,5us,speed=3", "got speed=; wanted one of nodes="),
        ("1Gbit,5us,0-9=1Gbit,5us", "contain rank 9"),
        ("1Gbit,5us,straggler=1", "(rank 2 computes 3 times longer); got '1'"),
    ],
)
def test_an_unreadable_text_says_what_was_wanted_and_shows_the_form(text, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        parse(text, 4)
    assert repr(text) in str(caught.value) and "Write it like '1Gbit,50us' or" in str(caught.value)
