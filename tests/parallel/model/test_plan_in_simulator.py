"""A step as a plan has it, on simulated ranks: every send of it counted, its clock beside the
formula. The arithmetic takes no time there; `t.compute` stands for it."""

import os

import numpy as np
import pytest

from minidl.comm import ring, simulate
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.links import Links
from minidl.parallel.model.planner import HEADER, Network, Shape, Task, candidates
from tests.parallel.model import events

SHAPE = Shape(layers=8, width=16, heads=8, context=4, vocab=64)
LINKS = Links.uniform(1e-6, 1e-9)


def step(t, plan, work):
    """({axis: bytes sent}, seconds) of this rank."""
    g = Grid(ledger := Ledger(t), dp=plan.dp, pp=plan.pp, tp=plan.tp)
    s, p, tokens = g.pp.rank, plan.pp, plan.micro * SHAPE.context
    (f, b, w), (n_f, n_b), last = work.stage(p, 1, plan.tp, plan.micro, plan.cut[s], s)
    kept, requests = np.zeros(tokens * SHAPE.width, np.float32), []
    tied = g.t.subgroup([g.rank_of(pp=0), g.rank_of(pp=p - 1)]) if s in (0, p - 1) else None
    if s < p - 1:
        requests.append(g.pp.isend(np.zeros(HEADER // 8), s + 1, 2))
    if s:
        g.pp.recv(np.empty(HEADER // 8), s - 1, 2)
    for kind, _, _ in events.order(plan.schedule, p, plan.m, 1)[s]:
        forward = kind == "F"
        before, after = (s - 1, s + 1) if forward else (s + 1, s - 1)
        if kind != "W" and 0 <= before < p:
            g.pp.recv(kept, before, forward)
        seconds = {"F": f, "B": b + w * (plan.schedule != "zb-h1"), "W": w}[kind]
        t.compute(seconds)
        for _ in range({"F": n_f, "B": n_b, "W": 0}[kind]):
            ring.all_reduce(g.tp, kept)
        for k in (1, 2) if forward and last else ():
            ring.all_reduce(g.tp, np.zeros(k * tokens, np.float32))
        if kind != "W" and 0 <= after < p:
            requests.append(g.pp.isend(kept, after, forward))
    for request in requests:
        request.wait()
    tensors = 12 * plan.cut[s] + 2 * (s == 0) + 3 * last
    ring.all_reduce(g.dp, np.zeros(1 + tensors, np.int64))
    ring.all_reduce(g.dp, np.zeros(int(work.weights(p, plan.tp, plan.cut, s)), np.float32))
    sent = {axis: ledger.count(group=getattr(g, axis).ranks).bytes_sent
            for axis in ("tp", "pp", "dp")}
    sent["tied"] = 0
    if tied is not None and p > 1:
        ring.all_reduce(tied, np.zeros(SHAPE.vocab * SHAPE.width // plan.tp, np.float32))
        sent["tied"] = ledger.count(group=tied.ranks).bytes_sent
    return s, sent, t.time()


@pytest.mark.parametrize("dp, pp, tp, schedule", [
    (2, 4, 2, "1f1b"), (2, 4, 4, "zb-h1"), (4, 4, 1, "gpipe"), (2, 3, 2, "1f1b"),
    (8, 8, 1, "1f1b"),
    *[(16, 8, 8, "1f1b")] * (os.environ.get("MINIDL_EVERY_SIZE") == "1")])  # 1,024 ranks
def test_a_step_sends_what_the_plan_says_in_its_time(dp, pp, tp, schedule):
    """Bytes are exact. The clock is within 3 %: the stages are not all alike, for the first and
    the last one have the ends of the model, and they reach the last all-reduce one by one."""
    n = dp * pp * tp
    task = Task(n, LINKS, 1e12, SHAPE, batch=dp * 8, flops=2e7)
    plan = next(plan for plan in sum(candidates(task, dp, pp, tp, Network(LINKS, n)), [])
                if plan.m == 8 and plan.v == 1 and plan.schedule == schedule)
    work = events.Work(events.Net(n, n, (1e-6, 1e-9), (1e-6, 1e-9)), SHAPE, 8 * dp, 2e7, 1e12)
    ranks = simulate(n, step, plan, work, links=LINKS)
    for axis, wanted in plan.sent.items():
        means = [np.mean([sent[axis] for s, sent, _ in ranks if s == stage]) for stage in range(pp)]
        assert max(means) == pytest.approx(wanted * (axis != "tp" or tp > 1), rel=1e-12), axis
    seconds = max(time for _, _, time in ranks)
    print(f"{n} ranks as {plan.name}, {schedule}: modelled {seconds:.6f} s, formula "
          f"{plan.time_s:.6f} s; sent {({k: round(v) for k, v in plan.sent.items()})}")
    assert plan.time_s == pytest.approx(seconds, rel=0.03)
