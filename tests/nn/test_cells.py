"""minidl/nn/cells.py beside PyTorch: values, gradients, with and without bias, batch and states."""

import numpy as np
import pytest

import minidl
from minidl import nn

torch = pytest.importorskip("torch", reason="compares with PyTorch")


@pytest.mark.parametrize("name, options", [
    ("RNNCell", {}), ("RNNCell", {"nonlinearity": "relu"}), ("LSTMCell", {}), ("GRUCell", {})])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_two_steps_are_pytorchs(name, options, bias, batch):
    theirs = getattr(torch.nn, name)(5, 4, bias=bias, **options)
    ours = getattr(nn, name)(5, 4, bias=bias, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*batch, 5)).astype("f4")
    mine, others = minidl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    state, their_state = ours(mine, ours(mine)), theirs(others, theirs(others))
    first = state[0] if name == "LSTMCell" else state
    their_first = their_state[0] if name == "LSTMCell" else their_state
    first.square().sum().backward()
    their_first.square().sum().backward()
    np.testing.assert_allclose(first.array, their_first.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mine.grad.array, others.grad.numpy(), rtol=1e-4, atol=1e-6)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_allclose(p.grad.array, q.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_loop_of_steps_is_the_layer():
    minidl.manual_seed(0)
    layer, cell = nn.LSTM(5, 4), nn.LSTMCell(5, 4)
    cell.load_state_dict({name.removesuffix("_l0"): w for name, w in layer.state_dict().items()})
    inputs, h_c, steps = minidl.randn(6, 2, 5), None, []
    for x in inputs:
        h_c = cell(x, h_c)
        steps.append(h_c[0])
    np.testing.assert_allclose(minidl.stack(steps).array, layer(inputs)[0].array, atol=1e-6)


def test_another_nonlinearity_is_refused():
    with pytest.raises(ValueError, match="RNNCell: nonlinearity must be 'tanh' or 'relu'; got 'e"):
        nn.RNNCell(2, 3, nonlinearity="elu")
