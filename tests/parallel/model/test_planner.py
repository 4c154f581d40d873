"""Which plans there are, their order, and what is said of them."""

import time
from contextlib import nullcontext

import pytest

from minidl import nn
from minidl.comm import cost, simulate
from minidl.comm.grid import Grid
from minidl.comm.transport import links_text
from minidl.comm.transport.scheduler import RankFailed
from minidl.nn import functional as F
from minidl.parallel.data import header
from minidl.parallel.model import planner, schedule
from minidl.parallel.model.cut import cut
from minidl.parallel.model.pipeline import Pipeline
from minidl.parallel.model.plan_text import _columns, text, why_not
from minidl.parallel.model.planner import MODELS, Network, Shape, Task, candidates, plans

NET = "nodes=8,intra=2Tbit,2us,inter=200Gbit,10us"


def task(n=64, memory=16e9, net=NET, **options):
    options = {"shape": MODELS["gpt2-xl"], "batch": 512, "precision": "O2", **options}
    return Task(n, links_text.parse(net, n), memory, **options)


@pytest.mark.parametrize("options", [
    {}, {"memory": 4e9}, {"memory": 1e9}, {"zero": 3}, {"recompute": True, "memory": 5e9},
    {"n": 48, "net": "nodes=6,intra=2Tbit,2us,inter=20Gbit,10us", "batch": 96},
    {"n": 16, "net": "1Gbit,50us", "shape": Shape(8, 512, 8, 128, 4096), "batch": 64},
    {"n": 16, "net": "nodes=2,intra=2Tbit,2us,inter=200Gbit,10us", "batch": 4, "memory": 1e9,
     "shape": Shape(4, 512, 8, 16384, 4096)},
    {"n": 16, "net": "nodes=2,intra=2Tbit,2us,inter=200Gbit,10us", "batch": 64, "memory": 2e9,
     "shape": Shape(4, 512, 8, 512, 4096, 16, 2)},
])
def test_what_is_left_out_is_not_better(options):
    """Beside all micro-batches and schedules of every factorisation."""
    this, found = task(**options), plans(task(**options))
    network = Network(this.links, this.ranks)
    for plan in found:
        every = sum(candidates(this, plan.dp, plan.pp, plan.tp, network, plan.cp, plan.ep), [])
        assert plan == min(every, key=lambda p: planner.rank_key(this, p)), plan.name
    assert found == sorted(found, key=lambda p: planner.rank_key(this, p))


def test_every_factorisation_is_there_once():
    found = plans(task(cp=1))
    grids = [(plan.dp, plan.pp, plan.tp) for plan in found]
    assert len(set(grids)) == len(grids)
    assert set(grids) == {(64 // pp // tp, pp, tp) for pp in (1, 2, 4, 8, 16, 32)
                          for tp in (1, 2, 4, 8, 16) if pp * tp <= 64}
    for plan in found:
        assert plan.dp * plan.micro * plan.m == 512 and sum(plan.cut) == 48
        assert len(plan.cut) == plan.pp and plan.time_s > 0 and 0 <= plan.bubble < 1
    shared = [(p.dp, p.pp, p.tp, p.cp) for p in plans(task(cp=4))]
    assert len(set(shared)) == len(shared)
    assert set(shared) == {(dp // cp, pp, tp, cp) for dp, pp, tp in grids for cp in (1, 2, 4)
                           if dp % cp == 0}
    mixed = task(n=16, shape=Shape(4, 512, 8, 512, 4096, 8, 2), batch=64, net="1Tbit,1us")
    assert {(p.dp, p.pp, p.tp, p.cp, p.ep) for p in plans(mixed)} == {
        (16 // pp // cp // ep, pp, 1, cp, ep) for pp in (1, 2, 4) for ep in (1, 2, 4, 8)
        for cp in (1, 2, 4, 8, 16) if 16 % (pp * cp * ep) == 0}


def test_ulysses_wants_a_head_for_each_rank_and_the_ring_even_pieces():
    odd = task(n=6, shape=Shape(2, 48, 6, 12, 99), batch=6, net="1Tbit,1us")
    network = Network(odd.links, 6)
    assert {(p.cp, p.method) for tried in candidates(odd, 2, 1, 1, network, 3) for p in tried} == {
        (3, "ring"), (3, "ulysses")}
    assert {p.method for p in sum(candidates(odd, 1, 1, 2, network, 3), [])} == {"ring", "ulysses"}
    # 3 heads each on 2 ranks; 12 tokens are no 2 x 4 pieces
    assert {(p.tp, p.cp) for p in plans(task(n=8, shape=odd.shape, batch=8, net="1Tbit,1us"))
            if p.cp > 1} == {(1, 2), (2, 2), (4, 2)}


def test_a_text_too_long_for_a_rank_is_shared():
    """With fewer rows than ranks, too: who shares no text has nothing to do."""
    long = dict(shape=Shape(12, 768, 12, 131072, 50257), batch=2, memory=80e9, precision="O0")
    best = plans(task(**long))[0]
    assert best.cp >= 8 and best.dp <= 2
    out = text(task(**long), plans(task(**long)))
    assert "r: by ring attention" in out and f"cp {best.cp} is the smallest number that a" in out
    with pytest.raises(ValueError, match="got a batch of 2 rows"):
        plans(task(n=4096, cp=1, **long))


def test_experts_are_divided_where_they_do_not_fit():
    mixed = task(net=NET, shape=Shape(12, 768, 12, 1024, 50257, 64, 2), memory=16e9, batch=512,
                 precision="O0")
    found = plans(mixed)
    best = found[0]
    assert best.ep > 1 and best.tp == 1
    whole = next(p for p in found if (p.dp, p.pp, p.cp, p.ep) == (64, 1, 1, 1))
    assert whole.memory > 12 * 64 * 16 * 8 * 768 * 768  # alone the experts and their states
    out = text(mixed, found)
    assert "tokens to experts and back" in out and "tokens routed evenly and none dropped" in out


def test_a_large_model_takes_tensor_parallelism_in_the_node_and_few_stages():
    """The rule of thumb: tp fills the node, pp is what memory asks for."""
    best = plans(task(512, 80e9, "nodes=64,intra=5Tbit,2us,inter=400Gbit,10us",
                      shape=MODELS["gpt3"], flops=3e14, recompute=True, zero=1, cp=1))[0]
    assert best.tp == 8 and best.pp > 1 and best.sent["tp"] > 50 * best.sent["dp"]


def test_what_memory_forbids_is_said_with_what_it_would_need():
    this = task(memory=16e9)
    found = plans(this)
    out = text(this, found)
    pure = next(plan for plan in found if plan.dp == 64)
    assert pure.memory > 16e9 and f"does not fit: needs {pure.memory / 1e9:.3g} GB" in out
    best = found[0]
    assert f"{best.name} wins" in out and f"dp {best.dp} follows" in out
    fits = [plan for plan in found if plan.memory <= this.memory]
    assert found[:len(fits)] == fits


def test_why_it_wins_follows_from_the_figures():
    this = task(memory=80e9, shape=MODELS["gpt3"])
    found = plans(this)
    best, out = found[0], text(this, found)
    less = next(p for p in found if (p.pp, p.tp) == (best.pp, best.tp // 2))
    assert less.memory > this.memory
    assert f"tp {best.tp} is the smallest number that fits into memory with pp {best.pp}" in out
    assert f"The messages of tp {best.tp} stay inside nodes." in out
    loser = next(p for p in found if p.tp == 2 * best.tp and p.memory <= this.memory)
    assert why_not(this, loser, best).endswith("all-reduces of activations between nodes")


@pytest.mark.parametrize("options", [
    {"n": 8, "net": "nodes=8,intra=2Tbit,2us,inter=200Gbit,10us"},
    {"n": 16, "net": "nodes=16,intra=2Tbit,2us,inter=200Gbit,10us", "batch": 64,
     "shape": Shape(4, 512, 8, 512, 4096, 16, 2)}])
def test_from_nodes_of_one_rank_all_bytes_leave(options):
    found = plans(task(**options))
    assert any(plan.sent["tied"] for plan in found)
    assert any(plan.sent["ep"] for plan in found) == ("shape" in options)
    for plan in found:
        assert plan.between == pytest.approx(sum(plan.sent.values()), rel=1e-12)


def test_a_plan_that_fills_the_memory_fits():
    best, other = plans(task())[:2]
    assert not why_not(task(memory=other.memory), other, best).startswith("does not fit")
    assert why_not(task(memory=other.memory - 1), other, best).startswith("does not fit")


def test_an_axis_without_a_choice_is_not_explained():
    this = task(cp=1)
    out = text(this, plans(this))
    assert "tp 1 fits." in out and "cp 1" not in out and "ep 1" not in out


def test_columns_are_as_wide_as_their_widest_cell():
    assert _columns([["dp", "rows x m", "schedule", ""],
                     ["1", "10 x 2", "gpipe", "wins"],
                     ["512", "1 x 1000", "1f1b, v 2", "slow"]]) == [
        " dp  rows x m  schedule",
        "  1    10 x 2  gpipe      wins",
        "512  1 x 1000  1f1b, v 2  slow"]


def test_zero_and_recompute_need_less_and_say_what_they_send():
    plain, zero1, zero3, again = (plans(task(n=8, net="1Gbit,1us", **options)) for options in (
        {}, {"zero": 1}, {"zero": 3}, {"recompute": True}))
    by = [{plan.name: plan for plan in found} for found in (plain, zero1, zero3, again)]
    name = "dp 8 x pp 1 x tp 1"
    plain, zero1, zero3, again = (found[name] for found in by)
    states = sum(plain.held.values()) - plain.held["activations"]
    assert states == pytest.approx(16 * 1.56e9, rel=0.01)
    assert zero3.held["optimizer"] * 8 == pytest.approx(plain.held["optimizer"], rel=1e-6)
    assert zero1.sent["dp"] == pytest.approx(plain.sent["dp"] / 2, rel=1e-4)  # float16, float32
    assert zero3.sent["dp"] == pytest.approx(1.5 * zero3.m * zero1.sent["dp"], rel=1e-4)
    assert again.held["activations"] / again.micro < 0.2 * plain.held["activations"] / plain.micro
    assert again.parts["compute"] == pytest.approx(4 / 3 * plain.parts["compute"], rel=0.03)


@pytest.mark.parametrize("zero, takes", [(0, "either"), (1, "untied"), (2, "untied"), (3, "none")])
def test_a_pipeline_with_zero_is_one_that_pipeline_takes(zero, takes):
    """Red before: it had ZeRO 3, and a weight that two stages share and ZeRO cuts."""
    def make(t, tied):
        grid = Grid(t, dp=2, pp=2)
        net = nn.GPT(11, 8, 2, 2, 16, tied=tied)
        Pipeline(grid.pp, cut(net, 2), F.cross_entropy, schedule.gpipe(2, 2), dp=grid.dp, zero=zero)

    for tied in (True, False):
        refused = takes == "none" or tied and takes == "untied"
        with pytest.raises(RankFailed, match=f"got zero={zero}") if refused else nullcontext():
            simulate(4, make, tied)
    this = task(n=8, net="1Gbit,1us", zero=zero)
    found, said = plans(this), "pp above 1 with ZeRO: the output layer has its own weight"
    assert any(plan.pp > 1 for plan in found) == (takes != "none")
    for plan in found:
        assert (plan.sent["tied"] > 0) == (plan.parts["tied"] > 0) == (plan.pp > 1 and not zero)
    assert (said in text(this, found)) == (takes == "untied")
    with pytest.raises(ValueError, match="ZeRO 3 pp is 1" if zero == 3 else "pp is at most 48"):
        plans(task(n=1024, net="1Gbit,1us", batch=3, cp=1, zero=zero))


def test_a_straggler_is_waited_for():
    slow = plans(task(straggler := 8, net="1Tbit,1us,straggler=3:2", batch=64, cp=1))
    even = plans(task(straggler, net="1Tbit,1us", batch=64, cp=1))
    by = {plan.name: plan for plan in even}
    assert all(p.parts["compute"] == pytest.approx(2 * by[p.name].parts["compute"])
               for p in slow if p.micro == by[p.name].micro and p.cut == by[p.name].cut)


@pytest.mark.parametrize("options, message", [
    ({"n": 1024, "shape": MODELS["gpt2"], "batch": 24, "cp": 1},
     "at least 16 replicas .* divisible by 16; got a batch of 24 rows"),
    ({"batch": 0}, "batch above 0; got 0"),
    ({"memory": -1.0}, "memory above 0"),
    ({"shape": MODELS["gpt2"]._replace(experts=2, top_k=3)}, "top_k of at most 2, .* got top_k=3"),
    ({"shape": Shape(2, 10, 3, 8, 9)}, "number of heads; got width=10, heads=3"),
    ({"net": "nodes=40+24,intra=1Tbit,1us,inter=1Gbit,1us"}, "for 64 ranks wants nodes of equal"),
    ({"net": "1Gbit,1us,0-1=2Gbit,1us"}, "no pair of ranks with its own link"),
])
def test_impossible_wishes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        plans(task(**options))


def test_a_hundred_thousand_ranks_take_a_second():
    this = task(100_000, 80e9, "nodes=12500,intra=2Tbit,2us,inter=200Gbit,10us",
                shape=MODELS["gpt3"], batch=100_000)
    start = time.process_time()
    found = plans(this)
    assert time.process_time() - start < 2  # 0.25 s on a busy core; long texts, experts: 0.8 s
    assert len(found) > 100 and found[0].memory <= this.memory


def test_the_closed_form_of_pure_data_parallelism_is_the_rings():
    plan = next(p for p in plans(task(n=8, net="1Gbit,1us", memory=1e12)) if p.dp == 8)
    params, tensors = 1_557_611_200, 12 * 48 + 4  # of GPT-2 XL, its output layer tied
    rings = [cost.ring_all_reduce(8, k, 1e-6, 8e-9) for k in (4 * params, header.n_bytes(tensors))]
    assert plan.parts["dp"] == sum(ring.time_s for ring in rings)
    assert plan.sent["dp"] == sum(ring.n_bytes for ring in rings)
