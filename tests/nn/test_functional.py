"""nn.functional runs the fused kernel where there is one, and the switch turns it off."""

import numpy as np
import pytest

import minidl
from minidl import ops
from minidl.cuda import dispatch
from minidl.cuda.run import Kernel
from minidl.nn import functional as F


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


def launches(call, monkeypatch):
    """How many kernels the forward and the backward of `call()` launch."""
    names = []
    launch = Kernel.__call__

    def counted(kernel, *args, **options):
        names.append(kernel.name)
        return launch(kernel, *args, **options)

    monkeypatch.setattr(Kernel, "__call__", counted)
    y = call()
    y.sum().backward()
    monkeypatch.setattr(Kernel, "__call__", launch)
    return len(names)


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler for the kernels")
@pytest.mark.parametrize("name", FUSED)
def test_the_kernel_runs_by_default_and_the_reference_when_switched_off(name, monkeypatch):
    assert launches(FUSED[name], monkeypatch) > 0
    with minidl.use_fused(False):
        assert launches(FUSED[name], monkeypatch) == 0


def test_double_precision_stays_with_the_references(monkeypatch):
    x = minidl.tensor(np.ones(3), requires_grad=True)
    assert launches(lambda: F.gelu(x), monkeypatch) == 0


def test_it_has_what_the_operator_table_says_and_no_more():
    assert all(getattr(F, name) is op for name, op in ops.namespace("f").items())
    assert not hasattr(F, "reshape")
