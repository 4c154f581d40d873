"""Losses as modules are PyTorch's with the same options, and so are their gradients."""

import numpy as np
import pytest

import minidl
from minidl import nn

torch = pytest.importorskip("torch", reason="compares with PyTorch")

LOSSES = [
    ("CrossEntropyLoss", {"ignore_index": 2, "label_smoothing": 0.1}, "classes"),
    ("CrossEntropyLoss", {"reduction": "sum"}, "classes"),
    ("NLLLoss", {"ignore_index": 0}, "classes"),
    ("NLLLoss", {"reduction": "none"}, "classes"),
    *((name, {"reduction": how}, target)
      for name, target in (("MSELoss", "normal"), ("L1Loss", "normal"), ("BCEWithLogitsLoss", "01"))
      for how in ("mean", "sum", "none")),
]


@pytest.mark.parametrize("name, options, target", LOSSES)
def test_a_loss_is_pytorchs(name, options, target):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6, 4))
    y = {"classes": np.array([0, 1, 2, 3, 2, 1]), "normal": rng.normal(size=(6, 4)),
         "01": rng.random((6, 4))}[target]
    weight = rng.normal(size=(6, 4) if target != "classes" else 6)
    mine, theirs = minidl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    got = getattr(nn, name)(**options)(mine, y)
    want = getattr(torch.nn, name)(**options)(theirs, torch.tensor(y))
    np.testing.assert_allclose(got.array, want.detach().numpy(), rtol=1e-12)  # float64
    if options.get("reduction") == "none":  # a cotangent of its own for each element
        got, want = (got * weight).sum(), (want * torch.tensor(weight)).sum()
    got.backward()
    want.backward()
    np.testing.assert_allclose(mine.grad, theirs.grad.numpy(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss"])
def test_weights_come_first_as_in_pytorch_and_are_buffers(name):
    rng = np.random.default_rng(2)
    x, weight = rng.uniform(0.1, 0.9, (5, 3)), rng.random(3)
    y = np.array([0, 1, 2, 1, 1]) if name in ("CrossEntropyLoss", "NLLLoss") else rng.random((5, 3))
    more = {"pos_weight": rng.random(3)} if name == "BCEWithLogitsLoss" else {}
    mine, theirs = (
        getattr(place, name)(tensor(weight), **{k: tensor(v) for k, v in more.items()})
        for place, tensor in ((nn, minidl.tensor), (torch.nn, torch.tensor)))
    np.testing.assert_allclose(mine(minidl.tensor(x), minidl.tensor(y)).item(),
                               theirs(torch.tensor(x), torch.tensor(y)).item(), rtol=1e-12)
    assert list(mine.state_dict()) == list(theirs.state_dict())
    with pytest.raises(TypeError):  # PyTorch's second is size_average: nobody means it
        getattr(nn, name)(minidl.tensor(weight), "sum")
