"""Recurrent layers: PyTorch's outputs, states and gradients, and differences; wrong shapes."""

import itertools

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.gradcheck import gradcheck
from minidl.nn import functional as F

VARIANTS = [{}, dict(num_layers=2, bidirectional=True), dict(batch_first=True, bias=False)]
CASES = [*itertools.product(["RNN", "LSTM", "GRU"], VARIANTS), ("RNN", dict(nonlinearity="relu"))]


def arrays(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]


@pytest.mark.parametrize("shape", [(6, 3, 5), (6, 5), (1, 1, 5)])
@pytest.mark.parametrize("name, options", CASES)
def test_outputs_states_and_gradients_equal_pytorchs(name, options, shape):
    torch = pytest.importorskip("torch", reason="compares with PyTorch")
    torch.manual_seed(0)
    theirs, ours = getattr(torch.nn, name)(5, 4, **options), getattr(nn, name)(5, 4, **options)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    batch = () if len(shape) == 2 else (shape[0] if options.get("batch_first") else shape[1],)
    n_states = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    x, h, c = [a.astype("f4") for a in arrays(1, shape, *[(n_states, *batch, 4)] * 2)]
    for with_state in (False, True):
        a, b = minidl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        given = [] if not with_state else [(minidl.tensor(h), minidl.tensor(c)) if name == "LSTM"
                                           else minidl.tensor(h)]
        theirs_given = [] if not with_state else [(torch.tensor(h), torch.tensor(c))
                                                  if name == "LSTM" else torch.tensor(h)]
        y, s = ours(a, *given)
        z, u = theirs(b, *theirs_given)
        s, u = (t if isinstance(t, tuple) else (t,) for t in (s, u))
        ours.zero_grad()
        theirs.zero_grad()
        ((y * y).sum() + sum(t.sin().sum() for t in s)).backward()
        ((z * z).sum() + sum(t.sin().sum() for t in u)).backward()
        pairs = [(y.array, z), (a.grad, b.grad), *((t.array, w) for t, w in zip(s, u)),
                 *((p.grad, q.grad) for p, q in zip(ours.parameters(), theirs.parameters()))]
        for got, wanted in pairs:  # float32: a few dozen roundings
            np.testing.assert_allclose(got, wanted.detach().numpy(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name, parts, n_states", [("rnn", 1, 1), ("lstm", 4, 2), ("gru", 3, 1)])
def test_backpropagation_through_time_equals_central_differences(name, parts, n_states):
    T, N, H = 3, 2, 2
    given = arrays(2, (T, N, parts * H), *[(N, H)] * n_states, (parts * H, H), (parts * H,))
    gradcheck(getattr(F, f"{name}_sequence"), *given, atol=2e-8, rtol=1e-6)


def test_dropout_is_between_the_layers_and_in_training_only():
    minidl.manual_seed(1)
    layer = nn.GRU(3, 4, num_layers=2, dropout=0.5)
    x = minidl.ones(5, 2, 3)
    assert (layer(x)[0].array != layer(x)[0].array).any()
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].array, layer(x)[0].array)
    one = nn.GRU(3, 4, dropout=0.5)
    np.testing.assert_array_equal(one(x)[0].array, one(x)[0].array)


def test_wrong_shapes_are_refused():
    layer = nn.LSTM(5, 4)
    with pytest.raises(ValueError, match=r"LSTM: input must .* \(L, N, 5\) .* got \(2, 3\)"):
        layer(minidl.zeros(2, 3))
    with pytest.raises(ValueError, match=r"first state must .* = \(1, 2, 4\); got \(1, 3, 4\)"):
        layer(minidl.zeros(6, 2, 5), (minidl.zeros(1, 2, 4), minidl.zeros(1, 3, 4)))
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu'"):
        nn.RNN(2, 2, nonlinearity="gelu")


def test_an_lstm_learns_to_remember_the_first_element():
    """One of two signs, then seven steps of noise: only what the cell keeps can tell."""
    minidl.manual_seed(0)
    rng = np.random.default_rng(0)
    layer, head = nn.LSTM(1, 8), nn.Linear(8, 2)
    optimizer = minidl.optim.AdamW([*layer.parameters(), *head.parameters()], lr=0.02)
    x = rng.standard_normal((8, 64, 1)).astype("f4") * 0.3
    target = rng.integers(0, 2, 64)
    x[0, :, 0] = 2 * target - 1
    for _ in range(60):
        loss = F.cross_entropy(head(layer(minidl.tensor(x))[0][-1]), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1  # it starts at log 2 = 0.69
