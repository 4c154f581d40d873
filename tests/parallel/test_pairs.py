"""Pairs of techniques that no test of their own has: a small GPT on two ranks, divided in each of
the ways of `WAYS`, trains with recompute, a profile, offload, accumulation, autocast and halves as
without; and what is refused. Models that are divided twice: test_pairs_divided.py; runs that are
restarted, healed and loaded elsewhere: test_pairs_saved.py.

tests/test_together.py holds docs/together.md against these tests and the others."""

from functools import partial

import pytest

from minidl import nn, optim
from minidl.comm import simulate
from minidl.comm.grid import Grid
from minidl.comm.observe.ledger import Ledger
from minidl.parallel import DGC, Compressed, DiLoCo, LocalSGD, SyncBatchNorm
from minidl.parallel.model.experts import expert_parallel, expert_parameters
from minidl.parallel.model.parallelize import Heads, parallelize
from tests.conftest import whole_form
from tests.parallel.pairs import (
    ALL, LOCAL, STAGES, WAYS, WRAPPERS, Run, batch, compare, entropy, few, made, plain,
)


def test_the_weights_move_and_depend_on_the_way():
    """Negative control: what is compared below is no standstill."""
    before = [p.array for p in made("").parameters()]
    assert any(abs(a - b).max() > 0.01 for a, b in zip(plain("data parallelism")[0], before))
    assert any(abs(a - b).max() > 1e-4 for a, b in zip(plain("data parallelism")[0],
                                                       plain("local SGD")[0]))


@pytest.mark.parametrize("how", ["recompute", "profile"])
def test_with_recompute_or_a_profile_the_bits_are_the_same(how):
    for way in few(ALL, how):
        compare(way, how, rtol=0, atol=0)


def test_with_the_optimizer_on_the_host_the_bits_are_the_same():
    for way in few(WAYS, "offload"):
        if way != "local SGD":  # which refuses it
            compare(way, "offload", rtol=0, atol=0)


def test_two_half_batches_are_one():
    for way in few(ALL, "halves of batches"):
        if way != "SyncBatchNorm":  # whose statistics are those of a half; it has its own test
            compare(way, "accumulation", rtol=1e-4, atol=2e-6)  # float32 sums in another order


@pytest.mark.parametrize("how", ["autocast", "halves"])
def test_in_two_bytes_the_weights_are_nearly_the_same(how):
    for way in few(ALL if how == "autocast" else [way for way in WAYS if way != "DiLoCo"], how):
        compare(way, how, rtol=0, atol=2e-2)  # fp16 products, in gradients taken times 0.2


@whole_form
@pytest.mark.parametrize("how", ["recompute", "profile", "offload"])
def test_of_two_such_words_each_changes_no_bit(how):
    for other in ("autocast", "halves", "accumulation", "offload", "recompute"):
        if other != how:
            compare("data parallelism", f"{how} {other}", other, rtol=0, atol=0)


@whole_form
@pytest.mark.parametrize("how", ["autocast", "halves"])
def test_two_half_batches_in_two_bytes(how):
    compare("data parallelism", f"accumulation {how}", how, rtol=0, atol=2e-2)


# -- what is refused


def test_replicas_that_differ_want_whole_weights():
    def body(t):
        for way in ("tensor", "sequence", "pipeline", "experts"):
            model = expert_parallel(made(way), t) if way == "experts" else Run(t, way).model
            for wrap in LOCAL.values():
                with pytest.raises(TypeError, match="wants whole weights on every rank"):
                    wrap(model, t, optim.SGD(model.parameters(), lr=0.1), period=2)

    simulate(2, body)


def test_replicas_that_differ_want_the_plain_model():
    def body(t):
        for way in ("data parallelism", "ZeRO 1", "ZeRO 2", "ZeRO 3", "compression"):
            wrapped = WRAPPERS[way](made(""), t)
            leaves = list(wrapped.shards() if way in STAGES else wrapped.parameters())
            for wrap in (LocalSGD, DiLoCo):
                with pytest.raises(TypeError, match="wants a model that is not wrapped; got a"):
                    wrap(wrapped, t, optim.SGD(leaves, lr=0.1), period=2)
            wrapped.close()

    simulate(2, body)


@pytest.mark.parametrize("inner", ["SyncBatchNorm", "experts"])
def test_weights_that_see_a_block_of_the_tokens_alone_are_refused(inner):
    def body(t):
        t, net = Ledger(t), made(inner if inner == "experts" else "", normed=True)
        grid = Grid(t, tp=2)
        if inner == "experts":
            net.norm = nn.LayerNorm(16)
            expert_parallel(net, t)
        else:
            SyncBatchNorm.convert(net, t)
        sent = t.bytes_sent, grid.tp.bytes_sent
        with pytest.raises(TypeError, match="wants a model without batch norm"):
            parallelize(net, grid, {"blocks.*.attention": partial(Heads, seq=1)})
        assert (t.bytes_sent, grid.tp.bytes_sent) == sent

    simulate(2, body)


def test_experts_beside_a_method_with_momentum_want_an_optimizer_of_their_own():
    """With one both train; an optimizer of all weights would give the experts none."""
    def body(t):
        net, (x, y) = expert_parallel(made("experts"), t), batch(0)
        model = Compressed(net, t, DGC(momentum=0.5, min_size=0))
        entropy(model(x), y).backward()
        with pytest.raises(ValueError, match="but not to divided experts"):
            optim.SGD(net.parameters(), lr=0.1).step()
        own = expert_parameters(net)
        before = [p.array.copy() for p in own]
        optim.SGD([p for p in net.parameters() if not p.is_local], lr=0.1).step()
        optim.Adam(own, lr=0.1).step()
        assert all(abs(p.array - b).max() > 0.01 for p, b in zip(own, before, strict=True))
        model.close()

    simulate(2, body)
