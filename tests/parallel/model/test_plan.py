"""The planner's winner is that of a simulation with queues (events.py), which shares nothing with
its formulas: 12 settings of model, network and memory for dp, pp and tp, 6 with long texts and cp,
4 with experts and ep."""

from itertools import product

import pytest

from minidl.comm.transport import links_text
from minidl.parallel.model import planner
from minidl.parallel.model.planner import Shape, Task
from tests.parallel.model.events import Net, Work

CLOSE = 1.02  # a planner's winner within 2 % of the simulation's best is as good
SMALL, WIDE = Shape(8, 512, 8, 128, 4096), Shape(4, 2048, 16, 128, 2048)
DEEP, WORDY = Shape(16, 256, 8, 128, 1024), Shape(8, 256, 8, 64, 32768)
FAST, SLOW = (2e-6, 8 / 800e9), (10e-6, 8 / 50e9)
LONG, MIXED = Shape(4, 512, 8, 8192, 2048), Shape(4, 256, 8, 128, 2048, 16, 2)
# name: (net, shape, rows, flops, bytes)
SETTINGS = {
    "8 alike, all fits": (Net(8, 8, FAST, FAST), SMALL, 32, 2e13, 8e9),
    "8 alike, slow": (Net(8, 8, (50e-6, 8e-9), (50e-6, 8e-9)), SMALL, 32, 2e11, 8e9),
    "8 alike, little memory": (Net(8, 8, FAST, FAST), WIDE, 32, 2e13, 1e9),
    "16 in nodes of 4, one NIC": (Net(16, 4, FAST, SLOW), SMALL, 64, 2e13, 8e9),
    "16 in nodes of 4, little memory": (Net(16, 4, FAST, SLOW), WIDE, 64, 2e13, 6e8),
    "16 in nodes of 8, many NICs": (Net(16, 8, FAST, SLOW, shared=False), WIDE, 64, 2e13, 2e9),
    "16 alike, deep": (Net(16, 16, FAST, FAST), DEEP, 64, 5e12, 1e8),
    "32 in nodes of 8, slow between": (Net(32, 8, FAST, (50e-6, 8e-9)), SMALL, 64, 2e12, 4e8),
    "32 in nodes of 4, many words": (Net(32, 4, FAST, SLOW), WORDY, 128, 2e12, 1e9),
    "32 alike, high latency": (Net(32, 32, (100e-6, 1e-10), (100e-6, 1e-10)), DEEP, 128, 1e12, 2e8),
    "64 in nodes of 8, one NIC": (Net(64, 8, FAST, SLOW), WIDE, 128, 2e13, 1e9),
    "64 in nodes of 8, few rows": (Net(64, 8, FAST, SLOW), WIDE, 16, 2e13, 4e9),
    # where ranks share texts
    "8 alike, long texts": (Net(8, 8, FAST, FAST), LONG, 4, 2e13, 8e9),
    "16 in nodes of 8, long texts": (Net(16, 8, FAST, SLOW), LONG, 4, 2e13, 8e9),
    "16 in nodes of 4, one long text": (Net(16, 4, FAST, SLOW), LONG._replace(heads=2), 1, 2e13,
                                        4e8),
    "16 in nodes of 8, long texts, slow": (Net(16, 8, (5e-5, 1e-9), (5e-5, 8e-9)), LONG, 8, 2e12,
                                           8e9),
    "16 in nodes of 8, few heads": (Net(16, 8, FAST, SLOW), LONG._replace(heads=2), 2, 2e13, 8e9),
    "16 in nodes of 8, slow, few rows": (Net(16, 8, (5e-5, 1e-9), (5e-5, 8e-9)), LONG, 4, 2e12,
                                         8e9),
    # where ranks share experts
    "8 alike, experts": (Net(8, 8, FAST, FAST), MIXED, 64, 5e12, 8e9),
    "16 in nodes of 8, experts": (Net(16, 8, FAST, SLOW), MIXED, 64, 5e12, 8e9),
    "16 in nodes of 4, experts, long texts": (
        Net(16, 4, FAST, SLOW), MIXED._replace(context=2048), 8, 5e12, 4e8),
    "16 in nodes of 4, the same, little memory": (
        Net(16, 4, FAST, SLOW), MIXED._replace(context=2048), 8, 5e12, 2.5e8),
}
THREE_AXES = list(SETTINGS)[:12]  # nobody shares a text
# near ties, in which the simulation prefers another: 0.4, 0.2, 0.2 and 1.7 % faster; where hops are
# as long as what is computed between them, and formulas estimates, 2.9 and 4.1 %
NEARLY = {"8 alike, all fits", "8 alike, little memory", "16 in nodes of 8, many NICs",
          "32 in nodes of 8, slow between", "16 in nodes of 4, experts, long texts",
          "16 in nodes of 8, slow, few rows"}
LONG_HOPS = {"16 in nodes of 4, experts, long texts": 1.03,
             "16 in nodes of 8, slow, few rows": 1.05}


def cuts(shape, p):
    """{v: blocks of each rank}; the last stage's head counts as blocks by its matrix."""
    head = shape.vocab / (12 * shape.width + 2 * shape.context)
    even, options = shape.layers // p if shape.layers % p == 0 else 0, []
    for last in range(1, shape.layers // p + 1):
        size, longer = divmod(shape.layers - last, max(p - 1, 1))
        cut = (size,) * (p - 1 - longer) + (size + 1,) * longer + (last,)
        if sum(cut) == shape.layers:
            options.append((max([*cut[:-1], cut[-1] + head]), -last, cut))
    found = {1: min(options)[2]}
    return found | {v: (even,) * p for v in range(2, even + 1) if p > 1 and even % v == 0}


def every_way(work, most_cp):
    """(dp, pp, tp, cp, ep, method, micro, schedule, v, cut) of everything that can be done."""
    shape, n = Shape(*work.shape), work.net.n
    for tp in (k for k in range(1, 1 + (1 if shape.experts else shape.heads)) if n % k == 0):
        for p in (k for k in range(1, shape.layers + 1) if n // tp % k == 0):
            for ep in (k for k in range(1, 1 + (shape.experts or 1))
                       if n // tp // p % k == 0 and (shape.experts or 1) % k == 0):
                for cp in (k for k in range(1, most_cp + 1) if n // tp // p // ep % k == 0):
                    dp = n // tp // p // ep // cp
                    rows = work.batch // (dp * ep) if work.batch % (dp * ep) == 0 else 0
                    micros = [k for k in range(1, rows + 1) if rows % k == 0]
                    for micro, method in product(micros, methods(shape, tp, cp)):
                        for schedule, v, cut in orders(shape, p, rows // micro):
                            yield dp, p, tp, cp, ep, method, micro, schedule, v, cut


def methods(shape, tp, cp):
    if cp == 1:
        return [""]
    heads = shape.heads / tp / cp  # of a rank, in between
    return ["ring"] * (shape.context % (2 * cp) == 0) + ["ulysses"] * (heads == int(heads))


def orders(shape, p, m):
    """(schedule, v, cut) of so many micro-batches."""
    for v, cut in cuts(shape, p).items():
        names = ["gpipe", "1f1b", "zb-h1"] if p > 1 else ["1f1b"]
        if v > 1:
            names = ["interleaved"] * (m % p == 0)
        for name in names:
            yield name, v, cut


def best_of(work, most_cp):
    """(seconds, way) of the fastest that fits. What takes longer even if nobody ever waits is not
    simulated."""
    ways = [(work.least(*way), way) for way in every_way(work, most_cp)]
    best, simulated = (float("inf"), None), 0
    for least, way in sorted(ways):
        if least >= best[0]:
            break
        if work.peak(*way) <= work.memory:
            took = work.step(*way)
            assert took >= least * (1 - 1e-12), way
            best, simulated = min(best, (took, way)), simulated + 1
    return *best, simulated


def way_of(plan):
    return (plan.dp, plan.pp, plan.tp, plan.cp, plan.ep, plan.method, plan.micro, plan.schedule,
            plan.v, plan.cut)


def compare(name):
    """(the planner's way, the simulation's, seconds of each in the simulation, how many ways were
    simulated, the planner's seconds)"""
    net, shape, batch, flops, memory = SETTINGS[name]
    work = Work(net, shape, batch, flops, memory)
    links = links_text.parse(net.text(), net.n)
    most_cp = 1 if name in THREE_AXES else net.n
    plan = planner.plans(Task(net.n, links, memory, shape, batch, flops, cp=most_cp))[0]
    way = way_of(plan)
    best_s, best, simulated = best_of(work, most_cp)
    return way, best, work.step(*way), best_s, simulated, plan.time_s


@pytest.mark.parametrize("name", SETTINGS)
def test_the_winner_is_the_simulations(name):
    """The very same way in 16 settings of 22; in the others within 2 % of the best, or as said."""
    way, best, way_s, best_s, simulated, _ = compare(name)
    assert simulated >= 1 and way_s >= best_s
    assert way_s <= LONG_HOPS.get(name, CLOSE) * best_s, (way, best)
    assert (way == best) == (name not in NEARLY), (way, best)


@pytest.mark.parametrize("name", ["64 in nodes of 8, one NIC", "64 in nodes of 8, few rows"])
def test_a_planner_that_knows_no_nodes_loses(name):
    """The negative control: told that all links are as fast as those inside a node."""
    net, shape, batch, flops, memory = SETTINGS[name]
    work, alike = Work(net, shape, batch, flops, memory), Net(net.n, net.n, net.intra, net.intra)
    right, wrong = (work.step(*way_of(planner.plans(Task(
        net.n, links_text.parse(told.text(), net.n), memory, shape, batch, flops, cp=1))[0]))
        for told in (net, alike))
    assert wrong > 1.05 * right


def main():
    """Print the table; python -m tests.parallel.model.test_plan"""
    for name in SETTINGS:
        way, best, way_s, best_s, simulated, own_s = compare(name)
        other = "the same" if way == best else str(best[:-1])
        print(f"{name:36}{str(way[:-1]):60}{other:60}{way_s / best_s:.3f} of {simulated}; formula "
              f"/ simulation {own_s / way_s:.2f}")


if __name__ == "__main__":
    main()
