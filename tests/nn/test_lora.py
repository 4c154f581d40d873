"""LoRA: it starts as the frozen layer, trains only the thin matrices, and merges into one."""

import numpy as np
import pytest

import minidl
from minidl import nn, optim

X = np.random.default_rng(0).standard_normal((4, 6)).astype("f4")


def trained(layer, n=3):
    optimizer = optim.AdamW([p for p in layer.parameters() if p.requires_grad], lr=0.1)
    for _ in range(n):
        loss = layer(minidl.tensor(X)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer


def test_it_starts_as_the_layer_and_shares_its_weights():
    base = nn.Linear(6, 5)
    wanted = base(minidl.tensor(X)).array
    layer = nn.LoRALinear.from_linear(base, rank=2)
    np.testing.assert_array_equal(layer(minidl.tensor(X)).array, wanted)
    assert layer.weight is base.weight and not base.weight.requires_grad


def test_only_the_thin_matrices_are_trained():
    layer = nn.LoRALinear(6, 5, rank=2, alpha=4)
    before = {name: p.array.copy() for name, p in layer.named_parameters()}
    optimizer = trained(layer)
    moved = [name for name, p in layer.named_parameters() if (p.array != before[name]).any()]
    assert moved == ["lora_A", "lora_B"] and layer.weight.grad is None is layer.bias.grad
    assert sum(p.numel() for p in optimizer.state) == 2 * (6 + 5)  # rank * (in + out)


def test_merged_it_is_one_linear_layer():
    layer = nn.LoRALinear(6, 5, rank=2, alpha=3)
    trained(layer)
    merged = layer.merge()
    assert type(merged) is nn.Linear and merged.weight.requires_grad
    np.testing.assert_allclose(merged(minidl.tensor(X)).array, layer(minidl.tensor(X)).array,
                               rtol=1e-5, atol=1e-5)  # sums of 6 terms in another order


def test_the_gradients_are_those_of_the_formula():
    layer = nn.LoRALinear(6, 5, rank=2, alpha=4, bias=False)
    trained(layer, 1)
    layer.zero_grad()
    y = layer(minidl.tensor(X))
    gy = np.random.default_rng(1).standard_normal(y.shape).astype("f4")
    y.backward(gy)
    A, B = layer.lora_A.array, layer.lora_B.array
    np.testing.assert_allclose(layer.lora_B.grad, 2 * gy.T @ (X @ A.T), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(layer.lora_A.grad, 2 * (gy @ B).T @ X, rtol=1e-5, atol=1e-5)


def test_dropout_acts_on_the_thin_way_only():
    layer = nn.LoRALinear(6, 5, dropout=1.0)
    layer.lora_B.data = np.ones_like(layer.lora_B.array)
    plain = X @ layer.weight.array.T + layer.bias.array
    np.testing.assert_allclose(layer(minidl.tensor(X)).array, plain, rtol=1e-5, atol=1e-5)
    assert (abs(layer.eval()(minidl.tensor(X)).array - plain) > 1e-3).any()


def test_a_rank_of_zero_is_refused():
    with pytest.raises(ValueError, match="rank is 0, want 1 or more"):
        nn.LoRALinear(6, 5, rank=0)
