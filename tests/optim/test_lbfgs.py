"""LBFGS takes PyTorch's steps, and refuses what it cannot update."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((8, 3)), RNG.standard_normal((8, 2))


def trained(lib, optimizer_of, n_steps, **options):
    """Losses and weights after some steps on a small problem that is not quadratic."""
    w = lib.tensor(np.zeros((3, 2)) + 0.1, requires_grad=True)
    b = lib.tensor(np.zeros(2), requires_grad=True)
    x, y = lib.tensor(A), lib.tensor(B)
    optimizer = optimizer_of([w, b], **options)
    calls, losses = [], []

    def closure():
        optimizer.zero_grad()
        loss = ((lib.tanh(x @ w + b) - y) ** 2).mean()
        loss.backward()
        calls.append(loss.item())
        return loss

    for _ in range(n_steps):
        losses.append(optimizer.step(closure).item())
    return losses, calls, w.detach().numpy(), b.detach().numpy()


@pytest.mark.parametrize("options", [
    {}, dict(lr=0.5), dict(max_iter=3), dict(max_iter=4, history_size=2), dict(max_eval=2),
    dict(lr=0.1, tolerance_change=1e-3)])
def test_every_call_of_the_closure_has_pytorchs_loss(options):
    torch = pytest.importorskip("torch", reason="the oracle")
    ours = trained(minidl, optim.LBFGS, 4, **options)
    theirs = trained(torch, torch.optim.LBFGS, 4, **options)
    assert len(ours[1]) == len(theirs[1])
    for mine, wanted in zip(ours, theirs):
        np.testing.assert_allclose(mine, wanted, rtol=1e-8, atol=1e-10)  # 80 steps of float64


def test_a_quadratic_is_solved_in_one_step():
    w = minidl.tensor(np.array([5.0, -3.0]), requires_grad=True)
    optimizer = optim.LBFGS([w])

    def closure():
        optimizer.zero_grad()
        loss = (w * w * minidl.tensor(np.array([1.0, 10.0]))).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert w.abs().max() < 1e-5


def test_what_it_cannot_do_is_refused():
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="no line search: .* got 'strong_wolfe'"):
        optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe")
    with pytest.raises(ValueError, match="one parameter group; got 2"):
        optim.LBFGS([{"params": [net.weight]}, {"params": [net.bias]}])
    with pytest.raises(TypeError):
        optim.LBFGS(net.parameters()).step()
    half = nn.Linear(2, 2).half()
    optimizer = optim.LBFGS(half.parameters())
    optim.use_master_weights(optimizer)
    with pytest.raises(RuntimeError, match="whole float32 or float64"):
        optimizer.step(lambda: 0)
