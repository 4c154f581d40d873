"""ZeRO as a user meets it: states, whole weights, norms, and what is an error."""

from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring, ring_blocks, simulate
from minidl.comm.observe.ledger import Ledger
from minidl.parallel import DataParallel, Zero1, Zero3
from tests.conftest import ranks
from tests.devices import host
from tests.on_device import place, there
from tests.parallel.zero.zero_net import (
    Net, assert_same_bits, backward, data, each_stage, net, parallel, share, train,
)

pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays


@each_stage
@ranks(1, 2, 3)
def test_a_state_goes_into_another_stage_and_back(t, stage):
    minidl.manual_seed(8)
    source = Zero1(Net().to(net().first.weight.device), t)
    state = source.state_dict()
    model = parallel(stage, net(), t)
    model.load_state_dict(state)
    assert_same_bits(model.state_dict(), state)
    want, got = train(source, t, n_steps=1), train(model, t, n_steps=1)
    for name in want:  # their buckets differ, so sums of three ranks may round otherwise
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("stay_below", [0, 1000])
@ranks(1, 3)
def test_a_state_of_stage_3_is_what_it_was_when_it_was_taken(t, stay_below):
    model = Zero3(net(), t, stay_below=stay_below)
    state = model.state_dict()
    before = {name: x.clone() for name, x in state.items()}
    train(model, t, n_steps=1)
    assert_same_bits(state, before)


@ranks(1, 3)
def test_after_a_forward_without_a_backward_all_units_are_freed(t):
    model = Zero3(net(), t)
    with minidl.no_grad():
        model.eval()(place(data(0)[0]))
    assert all(b.weights is None for b in model.reducer.buckets) and not model.coming
    model.close()


@each_stage
@ranks(1, 3)
def test_gathered_is_the_whole_module(t, stage):
    model = parallel(stage, net(), t)
    with model.gathered() as module:
        assert module is model.module
        want = net().first.weight.array
        np.testing.assert_array_equal(host(module.first.weight), host(want))
        x = place(data(0)[0])
        with minidl.no_grad():
            if t.rank == 0:  # nothing is sent inside: a rank may be alone
                module.eval()(x)
            inside = module.eval()(x).array
    with minidl.no_grad():
        np.testing.assert_array_equal(host(model(x)), host(inside))
    model.close()  # an ordinary module again
    backward(module, x, x)
    assert module.blocks[2].linear.weight.grad is not None


@ranks(2)
def test_a_weight_that_is_freed_says_where_it_is(t):
    model = parallel(3, net(), t)
    weight = model.module.first.weight
    for use in (lambda: weight.array.sum(), lambda: weight * 2, lambda: 2 - weight,
                lambda: np.asarray(weight.array), lambda: model.module(share(t, data(0))[0])):
        with pytest.raises(Exception, match="was used after it was freed. Each rank"):
            use()
    model.close()


@ranks(2)
def test_a_weight_in_two_units_is_an_error(t):
    linear = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="at most one unit.*; got 2 parameters that are in"):
        Zero3(nn.Sequential(linear, nn.Tanh(), nn.Sequential(linear)), t)


@each_stage
@ranks(2)
def test_forgetting_to_gather_is_an_error(t, stage):
    model = parallel(stage, net(), t)
    optimizer = optim.SGD(model.shards(), lr=0.1)
    x, y = share(t, data(0))
    backward(model, x, y)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"Call model.gather\(\) after optimizer.step"):
        model(x)
    model.close()


@each_stage
@ranks(2)
def test_zero_grad_of_the_model_forgets_the_shards_gradients(t, stage):
    model = parallel(stage, net(), t)
    backward(model, *share(t, data(0)))
    assert all(s.grad is not None for s in model.shards())
    model.zero_grad()
    assert all(s.grad is None for s in model.shards())
    model.close()


@each_stage
@ranks(1, 2, 3, 5)
def test_owned_slices_cover_every_parameter_once(t, stage):
    model = parallel(stage, net(), t)
    covered = {name: np.zeros(p.numel(), int) for name, p in model.module.named_parameters()}
    for line in model.owned().splitlines()[1:]:
        _, _, name, begin, _, end, *_ = line.replace("[", "").replace("]", "").split()
        covered[name][int(begin):int(end)] += 1
    for name, p in model.module.named_parameters():
        cut = p.requires_grad or stage == 3  # which cuts frozen weights, too
        assert (ring.all_reduce(t, covered[name]) == int(cut)).all()
    model.close()


def refused(t, run, words):
    with pytest.raises((RuntimeError, AttributeError), match=words):
        run()


@each_stage
@ranks(1, 2)
def test_an_optimizer_or_a_clip_of_the_parameters_is_an_error(t, stage):
    """They would change nothing, or clip by a wrong norm, and nobody would notice."""
    for fused in (True, False):
        module = net()
        before = optim.SGD(module.parameters(), lr=0.1)
        model = parallel(stage, module, t)
        after = optim.AdamW(model.parameters(), lr=0.1)
        backward(model, *map(place, data(t.rank)))
        with minidl.use_fused(fused):
            words = r"scattered over the ranks' shards|An optimizer is made of model.shards\(\)"
            refused(t, before.step, words)
            refused(t, after.step, words)
            refused(t, partial(optim.clip_grad_norm_, model.parameters(), 1.0), words)
        model.zero_grad()
        backward(model, *map(place, data(t.rank)))  # and goes on
        model.close()


@each_stage
@ranks(1, 2, 3)
def test_clipping_the_shards_clips_by_the_norm_of_all_of_them(t, stage):
    model = parallel(stage, net(), t)
    backward(model, *map(place, data(t.rank)))
    norm = model.grad_norm()
    assert optim.clip_grad_norm_(model.shards(), norm / 2) == pytest.approx(norm, rel=1e-6)
    assert model.grad_norm() == pytest.approx(norm / 2, rel=1e-4)
    with pytest.raises(ValueError, match="got norm_type inf"):
        optim.clip_grad_norm_(model.shards(), 1.0, norm_type=np.inf)
    model.close()


@each_stage
@ranks(1, 2, 3)
def test_ranks_skip_together_and_clip_by_one_norm_without_being_told(t, stage):
    model = parallel(stage, net(), t)
    optimizer = optim.SGD(model.shards(), lr=0.1)
    scaler = minidl.amp.GradScaler(init_scale=8.0)
    for bad in (True, False):
        backward(model, *map(place, data(t.rank)))
        shard = model.shards()[0]
        if bad and t.rank == t.size - 1 and shard.numel():
            shard.grad[:1] = np.inf
        norm = model.grad_norm() / 8
        assert bool(scaler.step(optimizer, max_norm=norm / 2)) != bad
        scaler.update()
        if not bad:  # the weights moved by the clipped gradient
            model.gather()
        model.zero_grad()
    assert scaler.get_scale() == 4.0
    model.close()


@each_stage
@ranks(1, 2)
def test_an_array_put_in_place_of_a_weight_is_noticed(t, stage):
    model = parallel(stage, net(), t)
    x, y = map(place, data(t.rank))
    weight = model.module.first.weight
    with model.gathered():
        array = weight.array.copy()
    weight.data = array
    refused(t, lambda: model(x), r"first.weight has a new array, because .* ZeRO would")


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@ranks(1, 2)
def test_a_weight_that_is_unfrozen_after_wrapping_is_noticed(t, stage):
    module = net()
    module.first.weight.requires_grad = False
    model = DataParallel(module, t) if stage == 0 else parallel(stage, module, t)
    x, y = map(place, data(t.rank))
    model(x)
    module.first.weight.requires_grad = True
    refused(t, lambda: model(x), "first.weight was frozen when the model was wrapped")


def lora():
    """Blocks of a frozen square weight and a small adapter beside it."""
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(16, 16)
            for p in self.base.parameters():
                p.requires_grad = False
            self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

        def forward(self, x):
            return (self.base(x) + self.up(self.down(x))).tanh()

    minidl.manual_seed(4)
    return there(nn.Sequential(*[Adapted() for _ in range(4)]))


@pytest.mark.parametrize("overlap", [True, False])
@ranks(1, 2, 3)
def test_frozen_weights_are_cut_and_gathered_too(t, overlap):
    """Equal to data parallelism, to the bit of an all-reduce cut the same way; each rank holds its
    share of the frozen weights and gathers them with their unit."""
    ledger = Ledger(t)
    model, plain = Zero3(lora(), ledger, overlap=overlap), lora()
    wrapped = DataParallel(plain, t, all_reduce=ring_blocks.all_reduce)
    optimizer = optim.SGD(model.shards(), lr=0.1)
    of_plain = optim.SGD([p for p in plain.parameters() if p.requires_grad], lr=0.1)
    whole = sum(p.numel() for p in plain.parameters())
    held = sum(b.shard.numel() for b in model.buckets)
    assert abs(held - whole / t.size) <= len(model.buckets)
    x = place(np.random.default_rng(t.rank).normal(size=(2, 16)).astype(np.float32))
    for _ in range(2):
        for m, o in ((model, optimizer), (wrapped, of_plain)):
            o.zero_grad()
            ledger.reset()
            (m(x) ** 2).sum().backward()
            if m is model:
                assert all(b.weights is None for b in model.buckets)
            o.step()
            if m is model:
                model.gather()
                sent = ledger.bytes_sent
        assert sent == model.bytes_sent()
    for name, array in model.state_dict().items():
        want = host(plain.state_dict()[name])
        np.testing.assert_allclose(host(array), want, rtol=1e-6, atol=1e-7)
    model.close()
    wrapped.close()


def test_ranks_that_enter_units_in_different_orders_hear_so():
    """Equal shapes: without the units' names rank 1 would compute with the other unit's weights."""
    def body(t):
        minidl.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model = Zero3(module, t, overlap=False)
        first, second = list(module)[::1 if t.rank == 0 else -1]
        with minidl.no_grad():
            second(first(minidl.ones(2, 4)))
        model.close()

    with pytest.raises(RuntimeError, match="wants the same call on all ranks"):
        simulate(2, body)
