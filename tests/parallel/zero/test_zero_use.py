"""ZeRO as a user meets it: states, whole weights, norms, and what is an error."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import ring
from minidl.parallel import Zero1, Zero3
from tests.conftest import ranks
from tests.devices import host
from tests.on_device import place
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
    before = {name: array.copy() for name, array in state.items()}
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
        want = net().first.weight.data
        np.testing.assert_array_equal(host(module.first.weight), host(want))
        x = place(data(0)[0])
        with minidl.no_grad():
            if t.rank == 0:  # nothing is sent inside: a rank may be alone
                module.eval()(x)
            inside = module.eval()(x).data
    with minidl.no_grad():
        np.testing.assert_array_equal(host(model(x)), host(inside))
    model.close()  # an ordinary module again
    backward(module, x, x)
    assert module.blocks[2].linear.weight.grad is not None


@ranks(2)
def test_a_weight_that_is_freed_says_where_it_is(t):
    model = parallel(3, net(), t)
    weight = model.module.first.weight
    for use in (lambda: weight.data.sum(), lambda: weight * 2, lambda: 2 - weight,
                lambda: np.asarray(weight.data), lambda: model.module(share(t, data(0))[0])):
        with pytest.raises(Exception, match="is freed, its shards are on their owners' ranks"):
            use()
    model.close()


@ranks(2)
def test_a_weight_in_two_units_is_an_error(t):
    linear = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="2 parameters are in more than one unit"):
        Zero3(nn.Sequential(linear, nn.Tanh(), nn.Sequential(linear)), t)


@each_stage
@ranks(2)
def test_forgetting_to_gather_is_an_error(t, stage):
    model = parallel(stage, net(), t)
    optimizer = optim.SGD(model.shards(), lr=0.1)
    x, y = share(t, data(0))
    backward(model, x, y)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"call model.gather\(\) after optimizer.step"):
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
        assert (ring.all_reduce(t, covered[name]) == int(p.requires_grad)).all()
    model.close()
