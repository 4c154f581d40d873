"""Lines that change nothing are gone, and what could change a bit more than a sign of 0 stays."""

import numpy as np
import pytest

import minidl
from minidl import infer
from minidl.infer.passes import algebra
from tests.infer.models import array, same


def optimised(model, *shape):
    x = minidl.tensor(array(*shape))
    graph = infer.trace(model, x)
    n = algebra(graph)
    same(graph.verify().run(x.array), model(x))
    return n, graph


@pytest.mark.parametrize("model, n, left", [
    (lambda x: (x * 1.0 + 0.0).exp(), 2, ["exp"]),
    (lambda x: ((0.0 + x) / 1.0 - 0.0).exp(), 3, ["exp"]),
    (lambda x: (-(-x)).exp(), 1, ["exp"]),
    (lambda x: x.permute(1, 0, 2).permute(1, 0, 2).exp(), 1, ["exp"]),
    (lambda x: x.permute(1, 2, 0).permute(1, 2, 0).exp(), 1, ["permute", "exp"]),
    (lambda x: x.reshape(6, 4).reshape(2, 3, 4).exp(), 1, ["exp"]),
    (lambda x: x.reshape(6, 4).reshape(4, 6).exp(), 1, ["reshape", "exp"]),
    (lambda x: x.reshape(2, 3, 4).exp(), 1, ["exp"]),
    (lambda x: (x * minidl.ones(4)).exp(), 1, ["exp"]),
    # not the same
    (lambda x: (1.0 / x).exp(), 0, ["div", "exp"]),
    (lambda x: (0.0 - x).exp(), 0, ["sub", "exp"]),
    (lambda x: (x * 0.0).exp(), 0, ["mul", "exp"]),
    (lambda x: (x * minidl.ones(5, 1, 1, 1)).exp(), 0, ["mul", "exp"]),
])
def test_what_is_replaced(model, n, left):
    found, graph = optimised(model, 2, 3, 4)
    assert (found, [node.op for node in graph.nodes]) == (n, left)


def test_a_parameter_of_ones_is_no_number():
    norm = minidl.nn.RMSNorm(4).eval()
    n, graph = optimised(lambda x: x * norm.weight, 2, 4)
    assert n == 1  # a weight that the model does not own is a constant

    class Model(minidl.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x):
            return x * self.norm.weight

    graph = infer.trace(Model().eval(), array(2, 4))
    assert algebra(graph) == 0 and np.all(graph.nodes[0].inputs[1].array == 1)
