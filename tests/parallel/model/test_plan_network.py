"""The planner's closed forms of messages: beside grid.traffic, and beside a simulation with queues
(events.py) that shares nothing with them."""

from itertools import product

import pytest

from minidl.comm import cost, grid
from minidl.comm.transport import links_text
from minidl.parallel.model import plan_network
from minidl.parallel.model.plan_network import Network
from tests.parallel.model import events


@pytest.mark.parametrize("net", ["nodes=4,intra=100Gbit,1us,inter=10Gbit,5us",
                                 "nodes=4,intra=100Gbit,1us,inter=10Gbit,5us,nic=rank",
                                 "10Gbit,5us", "nodes=2,intra=100Gbit,1us,inter=100Gbit,1us"])
def test_ways_are_those_of_grid_traffic(net):
    """Where groups fill nodes; else an upper bound. A ring takes no longer than grid.traffic's
    bound, and as long where the links are alike and nothing queues."""
    for n in (16, 48):
        links = links_text.parse(net, n)
        network = Network(links, n)
        for tp, dp in product(range(1, n + 1), repeat=2):
            if n % (tp * dp):
                continue
            sizes, stride = grid.shape(n, tp=tp, dp=dp, pp=n // tp // dp), 1
            wanted = grid.traffic(sizes, links, dict.fromkeys(("tp", "dp"), 1e6))
            for axis in ("tp", "dp"):
                way, exact = network.way(stride, sizes[axis]), wanted[axis]
                span = stride * sizes[axis]
                fills = network.node % span == 0 or span % network.node == 0
                assert way.queue == exact.share or sizes[axis] == 1 or (
                    not fills and way.queue > exact.share), (sizes, axis)
                assert (way.leave > 0) >= exact.crosses
                time_s = plan_network.all_reduce_s(way, sizes[axis], 1e6)
                if fills:
                    assert time_s <= exact.time_s * (1 + 1e-12)
                if not way.leave:
                    assert time_s == cost.ring_all_reduce(sizes[axis], 1e6, *links.intra).time_s
                stride *= sizes[axis]


@pytest.mark.parametrize("node, size, shared", [(8, 8, True), (4, 8, True), (4, 8, False),
                                                (2, 8, True), (4, 16, False), (1, 4, True)])
def test_a_ring_takes_the_time_of_its_messages(node, size, shared):
    """Beside events.py: exact but for the turns that several groups take at one port, 25 %."""
    for intra, inter, n_bytes, stride in product([(1e-6, 1e-10)], [(5e-6, 1e-9), (1e-4, 1e-9)],
                                                 [1e3, 1e6], [1, 2]):
        n = size * stride
        net = events.Net(n, node, intra, inter, shared)
        way = Network(links_text.parse(net.text(), n), n).way(stride, size)
        groups = [range(i, n, stride) for i in range(stride)]
        every = range(n)
        wanted = max(events.rings(net, groups, dict.fromkeys(every, n_bytes),
                                  dict.fromkeys(every, 0.0)).values())
        got = plan_network.all_reduce_s(way, size, n_bytes)
        assert got == pytest.approx(wanted, rel=1e-9 if way.queue == 1 else 0.25), (stride, inter)


NODES = [(8, 8, True), (4, 8, True), (4, 8, False), (2, 8, True), (4, 16, False), (1, 4, True)]


def work_of(node, size, stride, shared, inter):
    """(the Way of groups of so many ranks, so far apart; the same for events.py)."""
    net = events.Net(size * stride, node, (1e-6, 1e-10), inter, shared)
    way = Network(links_text.parse(net.text(), net.n), net.n).way(stride, size)
    return way, events.Work(net, (1, 1, 1, 1, 1), 1, 1.0, 1.0)


@pytest.mark.parametrize("node, size, shared", NODES)
def test_ring_attention_takes_the_time_of_its_messages(node, size, shared):
    """Of visits from none to longer than a hop: exact where links are alike, else within 15 %."""
    for inter, n_bytes, stride, visit in product([(5e-6, 1e-9), (1e-4, 1e-9)], [1e3, 1e6], [1, 2],
                                                 [0.0, 1e-5, 1e-4, 3e-3]):
        way, work = work_of(node, size, stride, shared, inter)
        got = plan_network.ring_attention_s(way, size, n_bytes, n_bytes, size * visit,
                                            size * 2 * visit)
        wanted = (work.together(stride, size, "around", n_bytes, visit),
                  work.together(stride, size, "back", n_bytes, n_bytes, 2 * visit))
        for i in (0, 1):
            assert size * (i + 1) * visit + got[i] == pytest.approx(
                wanted[i], rel=0.15 if way.slow else 1e-9), (stride, inter, n_bytes, visit, i)


@pytest.mark.parametrize("node, size, shared", NODES)
def test_an_all_to_all_takes_the_time_of_its_messages(node, size, shared):
    """Exact where links are alike, else within a quarter."""
    for inter, n_bytes, stride in product([(5e-6, 1e-9), (1e-4, 1e-9)], [1e3, 1e6], [1, 2]):
        way, work = work_of(node, size, stride, shared, inter)
        wanted = work.together(stride, size, "pairwise", n_bytes)
        assert plan_network.all_to_all_s(way, size, n_bytes) == pytest.approx(
            wanted, rel=0.25 if way.slow else 1e-9), (stride, inter, n_bytes)


def test_a_ring_along_two_axes_that_are_no_neighbours():
    """The same experts: along cp, then a step along dp, with the other experts' groups between."""
    for cp, ep, dp, node, shared in product([1, 2, 4], [2, 4], [1, 2, 4], [2, 4, 8, 16, 1024],
                                            [True, False]):
        n = cp * ep * dp
        net = events.Net(n, min(node, n), (1e-6, 1e-10), (5e-6, 1e-9), shared)
        if n % net.node:
            continue
        way = Network(links_text.parse(net.text(), n), n).both((1, cp), (cp * ep, dp))
        groups = [[r for r in range(n) if r // cp % ep == e] for e in range(ep)]
        every = range(n)
        for n_bytes in (1e3, 1e6):
            wanted = max(events.rings(net, groups, dict.fromkeys(every, n_bytes),
                                      dict.fromkeys(every, 0.0)).values())
            got = plan_network.all_reduce_s(way, cp * dp, n_bytes)
            assert got == pytest.approx(wanted, rel=0.25 if way.slow else 1e-9), (cp, ep, dp, node)
