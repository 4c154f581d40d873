"""Backward in two parts has the bits of one backward, and holds little in between."""

import weakref

import numpy as np
import pytest

import minidl
from minidl import backend, nn
from minidl.backward import walk
from minidl.memory.recompute import recompute
from minidl.nn import functional as F
from minidl.parallel.model.split import backward_to_inputs
from minidl.precision import amp


class Net(nn.Module):
    """Weights of every kind: of a product, a convolution and a norm; used twice, tied to an op that
    is not split, sliced, frozen, without a bias."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 12)
        self.first, self.twice = nn.Linear(12, 12), nn.Linear(12, 12)
        self.norm, self.conv = nn.LayerNorm(12), nn.Conv2d(1, 3, 3, padding=1)
        self.plain = nn.Parameter(np.full((36, 12), 0.1, np.float32))
        self.frozen = nn.Linear(12, 12, bias=False).requires_grad_(False)
        self.sliced = nn.Linear(12, 24)

    def forward(self, x, ids):
        x = self.norm(F.gelu(self.first(x + self.embed(ids))))
        x = self.twice(F.tanh(self.twice(self.twice(x))))
        x = self.conv(x.reshape(-1, 1, 4, 3)).reshape(-1, 36) @ self.plain
        x = F.linear(self.frozen(x), self.sliced.weight[:12], self.sliced.bias[:12])
        return F.linear(x, self.embed.weight)


def run(split, dtype="float32", autocast=False, frozen_input=False):
    minidl.manual_seed(0)
    net = Net().to(dtype)
    rng = np.random.default_rng(0)
    x = minidl.tensor(rng.normal(size=(6, 12)).astype(dtype), requires_grad=not frozen_input)
    ready = []
    for name, p in net.named_parameters():
        if p.requires_grad:
            p.on_grad_ready(lambda _, name=name: ready.append(name))
    with amp.autocast(enabled=autocast):
        y = net(x, rng.integers(0, 9, 6))
    gy = rng.normal(size=y.shape).astype(y.dtype)
    if split:
        weights, waiting = backward_to_inputs([y], [gy])
        names = {name for name, p in net.named_parameters() if p in waiting}
        assert names == {f"{n}.{k}" for n in ("first", "twice", "conv")
                         for k in ("weight", "bias")} | {"plain"}
        assert all(p.grad is None for p in waiting)
        early = None if frozen_input else x.grad.array.copy()
        weights()
        if not frozen_input:
            np.testing.assert_array_equal(early, x.grad)
    else:
        y.backward(gy)
    assert len(ready) == len(set(ready)) == sum(p.requires_grad for p in net.parameters())
    named = {"x": x} | dict(net.named_parameters())
    return {name: backend.array_of(p.grad) for name, p in named.items()}


@pytest.mark.parametrize("options", [
    {}, {"dtype": "float64"}, {"dtype": "float16"}, {"autocast": True}, {"frozen_input": True}])
def test_both_parts_together_have_the_bits_of_one_backward(options):
    want, got = run(False, **options), run(True, **options)
    assert got.keys() == want.keys()
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name, strict=True)


def test_after_the_first_part_only_the_products_inputs_and_gradients_are_held():
    """A chain of 4: of x W' the inputs, 4 of them, and the gradients of their results; tanh's
    results, which it saved, are those inputs, and the last one is gone."""
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)])
    x, made = minidl.tensor(np.ones((5, 8), np.float32), requires_grad=True), []
    y, tensors = x, []
    for linear, tanh in layers:
        tensors += [linear(y)]
        y = tanh(tensors[-1])
        made += [weakref.ref(tensors[-1].array), weakref.ref(y.array)]
        tensors.append(y)
    gy = np.ones((5, 8), np.float32)
    weights, _ = backward_to_inputs([y], [gy])
    del y, tensors
    held = [ref() is not None for ref in made]
    assert held == [False, True] * 3 + [False, False]
    weights()
    assert not any(ref() is not None for ref in made)


@pytest.mark.parametrize("alone", [True, False])
def test_a_recomputed_segment_is_divided_where_it_is_all_there_is(alone):
    """Its second run is a graph of its own; in the middle of another it has no second part."""
    linear, gy = nn.Linear(4, 4), np.ones((2, 4), "f")
    x = minidl.tensor(np.ones((2, 4), np.float32), requires_grad=True)
    y = recompute(lambda x: linear(x).tanh(), x)
    weights, waiting = backward_to_inputs([y if alone else y * 1], [gy])
    assert x.grad is not None and (linear.weight.grad is None) == alone
    assert waiting == (set(linear.parameters()) if alone else set())
    weights()
    other = minidl.tensor(x.array, requires_grad=True)
    got, linear.weight.grad, linear.bias.grad = [x.grad, *(
        p.grad.array for p in linear.parameters())], None, None
    linear(other).tanh().backward(gy)
    for a, b in zip(got, [other.grad, *(p.grad.array for p in linear.parameters())], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("again", [False, True])
def test_dropout_and_two_results_of_a_recomputed_segment_have_the_same_numbers(again):
    linear, found = nn.Linear(4, 4), []
    for divided in False, True:
        minidl.manual_seed(4)
        linear.weight.grad = linear.bias.grad = None
        x = minidl.tensor(np.ones((2, 4), np.float32), requires_grad=True)

        def run(x, unused):
            y = F.dropout(linear(x), 0.5)
            return y * 2, y

        y = recompute(run, x, 3) if again else run(x, 3)
        gys = [np.full((2, 4), g, "f") for g in (1, 2)]
        if divided:
            backward_to_inputs(list(y), gys)[0]()
        else:
            walk(list(y), gys)
        found.append([x.grad, linear.weight.grad, linear.bias.grad])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_weight_changed_between_the_parts_is_an_error():
    linear = nn.Linear(4, 4)
    x = minidl.tensor(np.ones((2, 4), np.float32), requires_grad=True)
    weights, _ = backward_to_inputs([linear(x)], [np.ones((2, 4), "f")])
    linear.weight.data = linear.weight.array * 2
    with pytest.raises(RuntimeError, match="changed in place between forward and backward"):
        weights()
