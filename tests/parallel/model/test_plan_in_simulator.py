"""A step as a plan has it, on simulated ranks: every send of it counted, its clock beside the
formula. The arithmetic takes no time there; `t.compute` stands for it."""

import os

import numpy as np
import pytest

from minidl.comm import ring, ring_blocks, simulate
from minidl.comm.all_to_all import all_to_all, all_to_all_v
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.links import Links
from minidl.parallel.data import header
from minidl.parallel.model.pipeline import HEADER
from minidl.parallel.model.planner import Network, Shape, Task, candidates
from minidl.parallel.model.ring_attention import pass_around, pass_around_and_sum
from tests.parallel.model import events

SHAPE = Shape(layers=8, width=16, heads=8, context=4, vocab=64)
LINKS = Links.uniform(1e-6, 1e-9)
LARGE = os.environ.get("MINIDL_EVERY_SIZE") == "1"  # 1,024 ranks, and 512


def attention_and_exchange(t, g, plan, work, kept, attention, forward):
    """What a block sends along cp and ep, forward or backward, with attention's computing; float32
    throughout. Returns the seconds that ring attention has computed."""
    elements, ring_s = kept // plan.tp, 0.0
    if plan.method == "ring":
        ring_s = attention if forward else 2 * attention
        sums, around = np.zeros(2 * elements, np.float32), pass_around if forward else (
            pass_around_and_sum)

        def visit(owner, block):
            t.compute(ring_s / plan.cp)
            return sums.copy()

        around(g.cp, np.zeros(2 * elements, np.float32), visit)
    for columns in (3, 1) if plan.method == "ulysses" else ():
        all_to_all(g.cp, np.zeros((plan.cp, columns * elements // plan.cp), np.float32))
    if plan.ep > 1:
        _, C, _, _, _, n_experts, k = work.shape
        if forward:
            counts = np.zeros(plan.ep * k * n_experts, np.int64)
            ring_blocks.all_gather(g.ep, counts, [r * k * n_experts for r in range(plan.ep + 1)])
        rows = [k * kept // C // plan.ep] * plan.ep
        for _ in range(2):
            all_to_all_v(g.ep, np.zeros((sum(rows), C), np.float32), rows, rows)
    return ring_s


def step(t, plan, work):
    """({axis: bytes sent}, seconds) of this rank."""
    sizes = {axis: getattr(plan, axis) for axis in ("dp", "pp", "tp", "cp", "ep")}
    g = Grid(ledger := Ledger(t), **sizes)
    dense, experts = g.group("dp", "ep", "cp"), g.group("dp", "cp")
    s, p, tokens = g.pp.rank, plan.pp, plan.micro * work.shape[3] // plan.cp
    last, blocks = s == p - 1, plan.cut[s]
    (f, b, w), attention, (n_f, n_b) = work.stage(plan.tp, tokens, blocks, last)
    kept, requests = np.zeros(tokens * SHAPE.width, np.float32), []
    tied = None
    if p > 1 and s in (0, p - 1):
        tied = g.t.subgroup([g.rank_of(pp=0), g.rank_of(pp=p - 1)])
    if s < p - 1:
        requests.append(g.pp.isend(np.zeros(HEADER), s + 1, 2))
    if s:
        g.pp.recv(np.empty(HEADER), s - 1, 2)
    for kind, _, _ in events.order(plan.schedule, p, plan.m, 1)[s]:
        forward = kind == "F"
        before, after = (s - 1, s + 1) if forward else (s + 1, s - 1)
        if kind != "W" and 0 <= before < p:
            g.pp.recv(kept, before, forward)
        seconds = {"F": f, "B": b + w * (plan.schedule != "zb-h1"), "W": w}[kind]
        for _ in range(blocks if kind != "W" else 0):
            seconds -= attention_and_exchange(t, g, plan, work, len(kept), attention, forward)
        t.compute(seconds)
        for _ in range({"F": n_f + (s == 0), "B": n_b, "W": 0}[kind]):
            ring.all_reduce(g.tp, kept)
        for k in (1, 2) if forward and last else ():
            ring.all_reduce(g.tp, np.zeros(k * tokens, np.float32))
        if kind != "W" and 0 <= after < p:
            requests.append(g.pp.isend(kept, after, forward))
    for request in requests:
        request.wait()
    tensors = (9 if work.shape[5] else 12) * blocks + 2 * (s == 0) + (3 - (p == 1)) * last
    header.share(dense, header.announce(0, range(tensors), set()))
    ring.all_reduce(dense, np.zeros(int(work.weights(p, plan.tp, plan.cut, s)), np.float32))
    sent = {axis: ledger.count(group=getattr(g, axis).ranks).bytes_sent if getattr(plan, axis) > 1
            else 0 for axis in ("tp", "cp", "ep", "pp")}
    sent["dp"] = ledger.count(group=dense.ranks).bytes_sent
    if work.shape[5]:
        ring.all_reduce(experts, np.zeros(1, np.int64))
        ring.all_reduce(experts, np.zeros(work.experts(plan.ep, blocks), np.float32))
        sent["dp"] += ledger.count(group=experts.ranks).bytes_sent
    sent["tied"] = 0
    if tied is not None:
        ring.all_reduce(tied, np.zeros(SHAPE.vocab * SHAPE.width // plan.tp, np.float32))
        sent["tied"] = ledger.count(group=tied.ranks).bytes_sent
    return s, sent, t.time()


@pytest.mark.parametrize("dp, pp, tp, schedule", [
    (2, 4, 2, "1f1b"), (2, 4, 4, "zb-h1"), (4, 4, 1, "gpipe"), (2, 3, 2, "1f1b"),
    (8, 8, 1, "1f1b"),
    *[(16, 8, 8, "1f1b")] * LARGE])
def test_a_step_sends_what_the_plan_says_in_its_time(dp, pp, tp, schedule):
    """Bytes are exact. The clock is within 3 %: the stages are not all alike, for the first and
    the last one have the ends of the model, and they reach the last all-reduce one by one."""
    compare(SHAPE, schedule, "", dp=dp, pp=pp, tp=tp)


@pytest.mark.parametrize("dp, pp, tp, cp, schedule, method", [
    (2, 4, 1, 4, "1f1b", "ring"), (2, 4, 2, 2, "gpipe", "ring"), (2, 4, 2, 4, "zb-h1", "ulysses"),
    (2, 1, 1, 8, "1f1b", "ring"), *[(8, 8, 4, 4, "1f1b", "ring")] * LARGE])
def test_texts_that_ranks_share(dp, pp, tp, cp, schedule, method):
    compare(SHAPE._replace(context=64), schedule, method, dp=dp, pp=pp, tp=tp, cp=cp)


@pytest.mark.parametrize("dp, pp, cp, ep, schedule", [
    (2, 4, 1, 2, "1f1b"), (2, 4, 1, 4, "zb-h1"), (2, 4, 2, 2, "gpipe"),
    *[(8, 8, 2, 4, "1f1b")] * LARGE])
def test_experts_that_ranks_share(dp, pp, cp, ep, schedule):
    compare(SHAPE._replace(context=16, experts=8, top_k=2), schedule, "ring" if cp > 1 else "",
            dp=dp, pp=pp, cp=cp, ep=ep)


def compare(shape, schedule, method, dp=1, pp=1, tp=1, cp=1, ep=1):
    n, rows = dp * pp * tp * cp * ep, 8 * dp * ep
    task = Task(n, LINKS, 1e12, shape, batch=rows, flops=2e7)
    plan = next(plan for plan in sum(candidates(task, dp, pp, tp, Network(LINKS, n), cp, ep), [])
                if (plan.m, plan.v, plan.schedule, plan.method) == (8, 1, schedule, method))
    net = events.Net(n, n, (1e-6, 1e-9), (1e-6, 1e-9))
    ranks = simulate(n, step, plan, events.Work(net, shape, rows, 2e7, 1e12), links=LINKS)
    for axis, wanted in plan.sent.items():
        means = [np.mean([sent[axis] for s, sent, _ in ranks if s == stage]) for stage in range(pp)]
        assert max(means) == pytest.approx(wanted * (axis != "tp" or tp > 1), rel=1e-12), axis
    seconds = max(time for _, _, time in ranks)
    print(f"{n} ranks as {plan.name}, {schedule}: modelled {seconds:.6f} s, formula "
          f"{plan.time_s:.6f} s; sent {({k: round(v) for k, v in plan.sent.items()})}")
    assert plan.time_s == pytest.approx(seconds, rel=0.03)
