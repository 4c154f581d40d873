"""minidl.nn.utils gives what torch.nn.utils gives."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters
from minidl.nn.utils.rnn import pad_sequence


def test_a_vector_has_all_parameters_in_their_order_and_sets_them():
    a, b = nn.Linear(3, 2), nn.Linear(3, 2)
    v = parameters_to_vector(a.parameters())
    assert v.shape == (8,) and v.tolist() == [*a.weight.flatten().tolist(), *a.bias.tolist()]
    v.sum().backward()
    assert a.weight.grad.tolist() == [[1] * 3] * 2  # the vector is in the graph
    version = b.weight.version
    vector_to_parameters(v.detach(), b.parameters())
    assert minidl.equal(a.weight, b.weight) and minidl.equal(a.bias, b.bias)
    assert b.weight.version > version and b.weight.is_leaf


@pytest.mark.parametrize("n", [7, 9])
def test_a_vector_of_another_length_is_refused(n):
    with pytest.raises(ValueError, match=rf"the 8 elements .* got shape \({n},\)"):
        vector_to_parameters(minidl.zeros(n), nn.Linear(3, 2).parameters())


@pytest.mark.parametrize("batch_first", [False, True])
def test_padded_sequences_are_pytorchs(batch_first):
    torch = pytest.importorskip("torch", reason="the oracle")
    rng = np.random.default_rng(0)
    for tail in ((), (2,), (2, 3)):
        rows = [rng.standard_normal((n, *tail)).astype(np.float32) for n in (2, 4, 1)]
        ours = pad_sequence([minidl.tensor(r) for r in rows], batch_first, -1.0)
        theirs = torch.nn.utils.rnn.pad_sequence([*map(torch.tensor, rows)], batch_first, -1.0)
        np.testing.assert_array_equal(ours, theirs)


def test_clipping_is_found_here_too():
    net = nn.Linear(3, 2)
    net(minidl.ones(1, 3)).sum().backward()
    norm = clip_grad_norm_(net.parameters(), 1.0)
    assert isinstance(norm, minidl.Tensor) and norm.item() == pytest.approx(8 ** 0.5)
    assert norm.dtype == minidl.float32
    with pytest.raises(AttributeError, match="nothing"):
        nn.utils.nothing
