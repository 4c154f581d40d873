"""The page's formulas, the real prediction and the real ledger: the same bytes."""

from itertools import pairwise

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.memory.ledger import totals
from minidl.memory.predict import predict
from minidl.memory.saved_bytes import saved_bytes
from minidl.plain import memory
from minidl.plain.autograd import Tensor
from minidl.plain.training import mlp
from minidl.precision import amp

SIZES = [5, 7, 11, 7, 3]


def model():
    layers = []
    for n_in, n_out in pairwise(SIZES):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def kinds(held):
    """The page's states under the names of the real ones."""
    return {"parameters": held["weights"], "gradients": held["gradients"],
            "master weights": held["masters"], "optimizer": held["m"] + held["v"]}


def test_states_are_the_predicted_and_the_recorded_ones():
    net = model()
    optimizer = minidl.optim.Adam(net.parameters())
    net, optimizer, scaler = amp.initialize(net, optimizer, "O2")
    scaler.scale(net(minidl.randn(4, 5)).mean()).backward()  # of a sum it would overflow
    scaler.step(optimizer)
    n = sum(p.numel() for p in net.parameters())
    assert memory.n_parameters(SIZES) == n
    held = totals(net, optimizer)
    wanted = kinds(memory.states(n))
    assert {kind: held[kind] for kind in wanted} == wanted
    predicted = predict(n, precision="O2", optimizer="adam")
    assert predicted.pop("total") == sum(memory.states(n).values()) == 16 * n
    assert predicted == wanted


@pytest.mark.parametrize("batch", [1, 6])
def test_the_real_engine_keeps_what_is_needed(batch):
    x = minidl.randn(batch, 5)
    assert saved_bytes(model()(x)) == 4 * memory.needed(SIZES, batch)  # float32: 4 bytes


@pytest.mark.parametrize("batch", [1, 6])
def test_the_engine_of_the_book_keeps_what_the_formula_says(batch):
    weights = [Tensor(np.ones(shape)) for n_in, n_out in pairwise(SIZES)
               for shape in [(n_in, n_out), (n_out,)]]
    y = mlp(weights, Tensor(np.ones((batch, 5))))
    assert memory.counted(y, weights) == memory.kept_by_autograd(SIZES, batch)
    assert memory.kept_by_autograd(SIZES, batch) > memory.needed(SIZES, batch)
