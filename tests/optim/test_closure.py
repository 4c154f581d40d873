"""step(closure) calls it, as in PyTorch: the loss comes back, its gradients are what is applied."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim
from minidl.parallel import Offload
from tests.optim.every import FOUND, fitting, make

X = np.random.default_rng(0).standard_normal((4, 3)).astype("f4")


def net():
    minidl.manual_seed(0)
    return nn.MLP(3, 4, 2)


def loss_of(model):
    return (model(X) ** 2).sum()


@pytest.mark.parametrize("name", FOUND)
def test_a_closure_is_the_backward_pass_before_the_step(name):
    with_closure, plain = net(), net()
    first = make(name, fitting(name, with_closure.parameters()))
    second = make(name, fitting(name, plain.parameters()))
    calls = []

    def closure():
        calls.append(1)
        first.zero_grad()
        loss = loss_of(with_closure)
        loss.backward()
        return loss

    with minidl.no_grad():  # the closure records its graph all the same
        losses = [float(first.step(closure).array) for _ in range(3)]
    for wanted in losses:
        second.zero_grad()
        loss = loss_of(plain)
        loss.backward()
        assert second.step() is None and float(loss.array) == wanted
    assert len(calls) == 3 and losses[0] > losses[2]
    for p, q in zip(with_closure.parameters(), plain.parameters(), strict=True):
        np.testing.assert_array_equal(p.array, q.array)


def test_an_offloaded_optimizer_calls_it_too():
    model = net()
    off = Offload(optim.AdamW(model.parameters(), lr=1e-2))

    def closure():
        off.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    first, second = float(off.step(closure).array), float(off.step(closure).array)
    off.close()
    assert second < first


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_pytorchs_losses_are_the_same(name):
    torch = pytest.importorskip("torch", reason="the oracle")
    theirs = torch.nn.Linear(3, 2)
    ours = nn.Linear(3, 2)
    ours.load_state_dict({k: v.detach().numpy().copy() for k, v in theirs.state_dict().items()})
    one = getattr(torch.optim, name)(theirs.parameters(), lr=0.05)
    two = getattr(optim, name)(ours.parameters(), lr=0.05)

    def closure(model, optimizer, x):
        def call():
            optimizer.zero_grad()
            loss = (model(x) ** 2).sum()
            loss.backward()
            return loss
        return call

    for _ in range(4):
        wanted = one.step(closure(theirs, one, torch.tensor(X))).item()
        found = two.step(closure(ours, two, X)).item()
        assert found == pytest.approx(wanted, rel=1e-5)  # float32 sums in another order


def test_what_is_no_function_is_refused_and_says_what_a_factor_is():
    optimizer = optim.SGD(net().parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"wanted a function .* got float. .* step\(unscale=...\)"):
        optimizer.step(0.5)
