"""The order of wrappers that docs/transports.md states is the one that is built."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from minidl.comm import ring
from minidl.comm.observe.ledger import Ledger
from minidl.comm.observe.watch import Watch
from minidl.comm.transport import nccl
from minidl.comm.transport.background import Background
from minidl.course.tutorial import launch
from tests.comm.transport.test_nccl import connected
from tests.conftest import ranks

pytestmark = pytest.mark.usefixtures("strict_cupy")

PAGE = Path(__file__).parents[3] / "docs" / "transports.md"


def layers(t):
    """Names of the transports, the outermost first."""
    names = [type(t).__name__]
    while hasattr(t, "inner"):
        t = t.inner
        names.append(type(t).__name__)
    return names


def stated(innermost):
    """The order of the page whose last layer is this one."""
    orders = re.findall("^order: (.*)$", PAGE.read_text(), re.M)
    return next(order.split(" > ") for order in orders if order.endswith(innermost))


def test_a_simulated_tutorial_has_the_stated_order(monkeypatch):
    found = []

    def main(t, args):
        ledger = Ledger(t)
        group = layers(ledger.subgroup([t.rank]))
        with connected(t, ledger) as (gpus, _):
            found.append((layers(gpus), layers(Background(gpus).transport), ["Nccl", *group]))

    monkeypatch.setattr(sys, "argv", ["test_order.py", "--sim", "2"])
    with pytest.raises(SystemExit) as end:
        launch(main)
    assert end.value.code == 0
    assert found == [(stated("SimTransport"),) * 3] * 2


@ranks(1, 2, 3)
def test_ledger_and_watch_count_the_same_in_either_order(t):
    outside, inside = Ledger(Watch(t)), Ledger(t)
    for ledger, u in ((outside, outside), (inside, Watch(inside))):
        ring.all_reduce(u, np.ones(10))
        assert ledger.bytes_sent == ring.bytes_sent(10, 8, t.size, t.rank)


@ranks(2, mpi=False)
def test_nccl_says_so_when_another_layer_hides_it(t):
    with connected(t) as (gpus, cupy):
        with pytest.raises(TypeError, match="Wrap in this order"):
            nccl.all_reduce(Ledger(gpus), cupy.asarray(np.ones(3)))
