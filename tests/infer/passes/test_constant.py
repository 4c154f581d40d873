"""Constants are folded once; a parameter's fold is a copy, and a broadcast is left."""

import numpy as np

import minidl
from minidl import infer
from minidl.infer.passes import constant
from tests.infer.models import array, same


def test_what_is_made_of_constants_alone_becomes_one():
    table = minidl.tensor(array(6, 4))
    x = minidl.tensor(array(3, 4))
    graph = infer.trace(lambda x: x + table[np.array([1, 2, 0])].exp() * 2.0, x)
    assert constant(graph) == 3
    assert [node.op for node in graph.verify().nodes] == ["add"]
    same(graph.run(x.array), x.array + np.exp(array(6, 4)[[1, 2, 0]]) * 2)


def test_a_folded_view_of_a_parameter_is_a_copy():
    linear = minidl.nn.Linear(4, 6).eval()
    graph = infer.trace(lambda x: x @ linear.weight[:4], minidl.tensor(array(3, 4)))
    assert constant(graph) == 1
    assert not np.shares_memory(graph.nodes[0].inputs[1].array, linear.weight.array)


def test_a_large_broadcast_is_not_written_out():
    row = minidl.tensor(array(1, 64))
    graph = infer.trace(lambda x: x + row.expand(64, 64), minidl.tensor(array(64, 64)))
    assert constant(graph) == 0
