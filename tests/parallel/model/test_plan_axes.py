"""The planner's closed forms of context and expert parallelism: what models on such ranks hold and
send. Their seconds: test_plan_network.py, test_plan_in_simulator.py, and the last test here."""

from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn, random
from minidl.comm import simulate
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.comm.transport.links import Links
from minidl.memory.saved_bytes import saved_bytes
from minidl.nn import functional as F
from minidl.parallel import DataParallel
from minidl.parallel.data.data_parallel import average_gradients
from minidl.parallel.model import plan_costs as costs
from minidl.parallel.model.context import context_parallel
from minidl.parallel.model.experts import Exchange, Ranks, expert_parallel, expert_parameters
from minidl.parallel.model.parallelize import parallelize
from minidl.parallel.model.planner import Network, Shape, Task, candidates
from minidl.precision import amp
from tests.parallel.model.test_plan_costs import Recomputed

SHAPE, ROWS = Shape(layers=2, width=16, heads=4, context=16, vocab=12), 4
MIXED = SHAPE._replace(context=8, experts=8, top_k=2)


def gpt(shape, precision, recompute=False):
    """Nothing is dropped."""
    ff = nn.transformer.FeedForward
    if shape.experts:
        ff = partial(nn.MoE, n_experts=shape.experts, top_k=shape.top_k, capacity_factor=None)
    model = (Recomputed if recompute else nn.GPT)(
        shape.vocab, shape.context, shape.layers, shape.heads, shape.width, feed_forward=ff,
        generator=random.Generator(0))
    amp.prepare(model, precision)
    return model


def batch(shape, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(0, shape.vocab, (ROWS, shape.context)) for _ in "xy")


def plan_of(shape, method="", **options):
    """The Plan of these ranks with one micro-batch of ROWS."""
    sizes = {axis: options.pop(axis, 1) for axis in ("dp", "pp", "tp", "cp", "ep")}
    n = int(np.prod(list(sizes.values())))
    task = Task(n, Links.uniform(1e-5, 1e-8), 1e12, shape, ROWS * sizes["dp"] * sizes["ep"],
                **options)
    found = sum(candidates(task, sizes["dp"], 1, sizes["tp"], Network(task.links, n), sizes["cp"],
                           sizes["ep"]), [])
    return next(plan for plan in found if (plan.m, plan.method) == (1, method))


@pytest.mark.parametrize("method, tp, cp", [("ring", 1, 2), ("ring", 1, 4), ("ulysses", 1, 4),
                                            ("ring", 2, 2), ("ulysses", 2, 2)])
@pytest.mark.parametrize("precision", ["O0", "O2"])
def test_activations_of_texts_that_ranks_share_are_exact(method, tp, cp, precision):
    """But for the loss of tensor parallelism, which test_plan_costs.py has: all logits here."""
    def body(t):
        grid, model = Grid(t, tp=tp, cp=cp), gpt(SHAPE, precision)
        if tp > 1:
            parallelize(model, grid, split_logits=True)
        part = context_parallel(model, grid.cp, method)
        x, _ = batch(SHAPE)
        return saved_bytes(model(part(x)).sum())

    width, (stage,) = 2 if precision == "O2" else 4, costs.stages_of((SHAPE.layers,))
    _, last = costs.ends(SHAPE, tp, width)
    no_loss = last.saved - 2 * width * SHAPE.width - 8  # norm and output layer keep these
    assert set(simulate(tp * cp, body)) == {
        costs.activations(SHAPE, tp, width, False, "1f1b", 1, 1, 1, stage, ROWS, cp, method)
        - no_loss * ROWS * SHAPE.context // cp}


@pytest.mark.parametrize("precision", ["O0", "O2"])
@pytest.mark.parametrize("experts, k, ep", [(4, 1, 2), (8, 2, 4), (8, 3, 2), (4, 2, 1)])
def test_activations_and_weights_with_experts_are_exact(precision, experts, k, ep):
    """The mean of the ranks: rows go where the router says."""
    shape = MIXED._replace(experts=experts, top_k=k)

    def body(t):
        model = expert_parallel(gpt(shape, precision), t)
        x, y = batch(shape, t.rank)
        loss = F.cross_entropy(model(x).reshape(-1, shape.vocab), y.reshape(-1))
        own = expert_parameters(model)
        dense = [p for p in model.parameters() if not p.is_local]
        return (saved_bytes(loss), sum(p.numel() for p in own), sum(p.numel() for p in dense),
                len(dense))

    width, (stage,) = 2 if precision == "O2" else 4, costs.stages_of((shape.layers,))
    assert np.mean(simulate(ep, body), 0).tolist() == [
        costs.activations(shape, 1, width, False, "1f1b", 1, 1, 1, stage, ROWS),
        shape.layers * costs.block(shape, 1, width, ep=ep).own, *costs.weights(shape, 1, stage)]


def sent_of(wrapped, loss, ledger, groups, finish=lambda: None):
    """{axis: bytes} of a second step: after the first one rank 0 tells in which order gradients
    came."""
    for _ in range(2):
        ledger.reset()
        loss().backward()
        finish()
    wrapped.close()
    return {axis: ledger.count(group=group.ranks).bytes_sent for axis, group in groups.items()}


@pytest.mark.parametrize("method, options", [
    ("ring", {}), ("ulysses", {}), ("ring", {"recompute": True}), ("ring", {"precision": "O2"}),
    ("ulysses", {"recompute": True, "precision": "O2"})])
def test_bytes_of_texts_that_ranks_share_are_the_ledgers(method, options):
    def body(t):
        grid = Grid(ledger := Ledger(t), cp=4, dp=2)
        model = gpt(SHAPE, options.get("precision", "O0"), options.get("recompute"))
        part = context_parallel(model, grid.cp, method)
        wrapped = DataParallel(model, dense := grid.group("cp", "dp"))
        x, y = (part(a) for a in batch(SHAPE, grid.dp.rank))
        return sent_of(wrapped, lambda: F.cross_entropy(wrapped(x).reshape(-1, 12), y.reshape(-1)),
                       ledger, {"cp": grid.cp, "dp": dense})

    plan = plan_of(SHAPE, method, cp=4, dp=2, **options)
    ranks = simulate(8, body)
    for axis in ("cp", "dp"):
        assert sum(sent[axis] for sent in ranks) == pytest.approx(8 * plan.sent[axis], rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"precision": "O2"}])
def test_bytes_of_experts_are_the_ledgers(options):
    """Of rows at most: those of a token that stays on its rank are not sent. Counts, and gradients,
    are exact."""
    def body(t):
        grid = Grid(ledger := Ledger(t), ep=4, dp=2)
        dense, same = grid.group("ep", "dp"), grid.group("dp")
        model = expert_parallel(gpt(MIXED, options.get("precision", "O0"),
                                    options.get("recompute")), grid.ep)
        wrapped = DataParallel(model, dense, broadcast_buffers=False)
        x, y = batch(MIXED, t.rank)
        return sent_of(wrapped, lambda: F.cross_entropy(wrapped(x).reshape(-1, 12), y.reshape(-1)),
                       ledger, {"ep": grid.ep, "dp": dense, "experts": same},
                       lambda: average_gradients(same, expert_parameters(model)))

    plan, ranks = plan_of(MIXED, ep=4, dp=2, **options), simulate(8, body)
    gradients = sum(sent["dp"] + sent["experts"] for sent in ranks)
    assert gradients == pytest.approx(8 * plan.sent["dp"], rel=1e-12)
    assert sum(sent["ep"] for sent in ranks) == pytest.approx(8 * plan.sent["ep"], rel=0.05)


@pytest.mark.parametrize("ep", [2, 4])
@pytest.mark.parametrize("precision, again", [("O0", False), ("O2", True)])
def test_experts_take_the_simulators_time_where_all_get_as_many_tokens(ep, precision, again):
    """Bytes and seconds of a block are exact: the counts, then two exchanges each way. Recompute
    does the forward's again."""
    plan = plan_of(MIXED, ep=ep, precision=precision, recompute=again)
    n_tokens, k, n_experts = ROWS * MIXED.context, MIXED.top_k, MIXED.experts
    bounds = [rank * n_experts // ep for rank in range(ep + 1)]

    def body(t):
        t = Ledger(t)
        joined, counts = Ranks(t, t, True, bounds), [k * n_tokens // ep] * ep
        rows = minidl.Tensor(np.ones((k * n_tokens, MIXED.width), "f2" if precision == "O2"
                                     else "f4"), requires_grad=True)
        start = t.time()
        for _ in range(1 + again):
            joined.gather(np.full((k, n_experts), n_tokens // n_experts))
            y = Exchange.apply(rows, t=t, counts=counts, counts_in=counts)
            y = Exchange.apply(y, t=t, counts=counts, counts_in=counts)
        y.backward(np.ones(y.shape, y.dtype))
        return t.time() - start, t.count().bytes_sent

    for time_s, n_bytes in simulate(ep, body, links=Links.uniform(1e-5, 1e-8)):
        assert plan.parts["ep"] == pytest.approx(MIXED.layers * time_s, rel=1e-12)
        assert plan.sent["ep"] == MIXED.layers * n_bytes
