"""nn.functional runs the fused kernel where there is one, and the switch turns it off."""

import numpy as np
import pytest

import minidl
from minidl.fused import dispatch
from minidl.nn import functional as F
from minidl.ops import attention


def x(*shape):
    return minidl.ones(*shape, requires_grad=True)


FUSED = {
    "gelu": lambda: F.gelu(x(5, 7), approximate="tanh"),
    "dropout": lambda: F.dropout(x(5, 7)),
    "embedding": lambda: F.embedding(np.array([0, 2]), x(5, 7)),
    "layer_norm": lambda: F.layer_norm(x(5, 7), (7,), x(7), x(7)),
    "rms_norm": lambda: F.rms_norm(x(5, 7), (7,), x(7)),
    "softmax": lambda: F.softmax(x(5, 7), -1),
    "cross_entropy": lambda: F.cross_entropy(x(5, 7), np.arange(5)),
    "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
        x(2, 3, 5, 8), x(2, 3, 5, 8), x(2, 3, 5, 8), is_causal=True),
    "log_softmax": lambda: F.log_softmax(x(5, 7), 1),
}


def picked(call, monkeypatch):
    """Which of kernel and reference the forward of `call()` and its backward ran."""
    seen = []
    usable = dispatch.usable

    def watched(*arrays):
        seen.append(usable(*arrays))
        return seen[-1]

    for module in (dispatch, attention):  # attention asks `usable` itself
        monkeypatch.setattr(module, "usable", watched)
    y = call()
    y.sum().backward()
    return seen


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler for the kernels")
@pytest.mark.parametrize("name", FUSED)
def test_the_kernel_runs_by_default_and_the_reference_when_switched_off(name, monkeypatch):
    seen = picked(FUSED[name], monkeypatch)
    assert seen and all(seen)
    with minidl.use_fused(False):
        seen = picked(FUSED[name], monkeypatch)
    assert seen and not any(seen)


def test_double_precision_stays_with_the_references(monkeypatch):
    x = minidl.tensor(np.ones(3), requires_grad=True)
    assert picked(lambda: F.gelu(x), monkeypatch) == [False, False]
