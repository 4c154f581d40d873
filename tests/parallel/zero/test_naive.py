"""Each stage's naive step is the oracle of the real one: the same bits, step after step."""

from functools import partial

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.comm import chunks, simulate
from minidl.nn import functional as F
from minidl.parallel import Zero1, Zero2, Zero3
from minidl.parallel.data import flat
from minidl.parallel.zero import naive, zero3
from tests.conftest import ranks
from tests.devices import host
from tests.on_device import place, there
from tests.parallel.zero.zero_net import SIZES, assert_same_bits, finish

pytestmark = pytest.mark.usefixtures("on_device")  # and with mark.gpu: on device arrays

N_STEPS = 3


def network():
    """Weights and biases of 35, 7, 49, 7, 21 and 3 elements: blocks begin anywhere."""
    minidl.manual_seed(4)
    return there(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 7), nn.Linear(7, 3)))


def batch(t, step):
    """This rank's: as many rows on every rank."""
    rng = np.random.default_rng([step, t.rank])
    return tuple(place(rng.normal(size=(4, m)).astype("f4")).array for m in (5, 3))


def leaf(t, params):
    """This rank's block of all elements of the parameters, as a leaf."""
    whole = flat.flatten([p.array for p in params])
    return nn.Parameter(chunks.split(whole, t.size)[t.rank].copy())


def adam(params):
    return optim.AdamW(params, lr=1e-2)


def backward(model, x, y):
    F.mse_loss(model(minidl.Tensor(x)), minidl.Tensor(y)).backward()


def real(t, stage, **options):
    model = stage(network(), t, **options)
    optimizer = adam(model.shards())
    for step in range(N_STEPS):
        optimizer.zero_grad()
        backward(model, *batch(t, step))
        optimizer.step()
        model.gather()
    return finish(model)


@ranks(*SIZES)
def test_stage_1(t):
    model = network()
    params = list(model.parameters())[::-1]  # as the one bucket has them
    shard = leaf(t, params)
    optimizer = adam([shard])
    for step in range(N_STEPS):
        x, y = batch(t, step)
        naive.naive_step1(t, params, shard, optimizer, partial(backward, model, x, y))
    assert_same_bits(model.state_dict(), real(t, Zero1))


@ranks(*SIZES)
def test_stage_2(t):
    model = network()
    shards = {p: leaf(t, [p]) for p in model.parameters()}
    optimizer = adam(shards.values())
    for step in range(N_STEPS):
        x, y = batch(t, step)
        naive.naive_step2(t, shards, optimizer, partial(backward, model, x, y))
        assert all(p.grad is None for p in shards)
    want = real(t, Zero2, bucket_bytes=1, first_bucket_bytes=1)  # a bucket for each, too
    assert_same_bits(model.state_dict(), want)


@ranks(*SIZES)
def test_stage_3(t):
    layers = list(network())
    shards = {layer: leaf(t, list(layer.parameters())) for layer in layers}
    optimizer = adam(shards.values())
    for step in range(N_STEPS):
        x, y = batch(t, step)

        def loss_gradient(output, y=y):
            output = minidl.Tensor(output, requires_grad=True)
            F.mse_loss(output, minidl.Tensor(y)).backward()
            return output.grad

        naive.naive_step3(t, layers, shards, optimizer, x, loss_gradient)
        for layer in layers:
            assert all(isinstance(p.array, zero3.Freed) for p in layer.parameters())
    want = real(t, Zero3)
    for i, layer in enumerate(layers):
        names = [f"{i}.{name}" for name, _ in layer.named_parameters()]
        own = chunks.split(flat.flatten([want[name] for name in names]), t.size)[t.rank]
        np.testing.assert_array_equal(host(shards[layer]), own)


def test_the_ranks_batches_matter():
    """Negative control: with another rank's batches the weights are others."""
    two, three = (simulate(n, real, Zero1)[0] for n in (2, 3))
    assert all((two[name] != three[name]).any() for name in two)
