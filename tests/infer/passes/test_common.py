"""The same line twice is one line; what nobody reads is gone."""

import numpy as np

import minidl
from minidl import infer
from minidl.infer.passes import common, dead
from tests.infer.models import array, same


def traced(model):
    return infer.trace(model, minidl.tensor(array(3, 4)))


def test_the_same_line_is_made_once():
    graph = traced(lambda x: (x.exp() * 2.0) + (x.exp() * 2.0))
    assert common(graph) == 2
    assert [node.op for node in graph.verify().nodes] == ["exp", "mul", "add"]
    same(graph.run(array(3, 4)), 4 * np.exp(array(3, 4)))


def test_other_attributes_operands_and_constants_are_other_lines():
    one, two = minidl.tensor(array(4, seed=1)), minidl.tensor(array(4, seed=2))
    assert common(traced(lambda x: x.sum(0) + x.sum(1)[:1])) == 0
    assert common(traced(lambda x: (x - 1.0) + (1.0 - x))) == 0
    assert common(traced(lambda x: x * 2 + x * 2.0)) == 0
    assert common(traced(lambda x: (x + one) * (x + two))) == 0
    assert common(traced(lambda x: (x + one) * (x + minidl.tensor(one.array.copy())))) == 1


def test_lines_that_nobody_reads_are_gone():
    def model(x):
        x.exp().tanh()
        return x * 2.0

    graph = traced(model)
    assert graph.count() == 3 and dead(graph) == 2
    assert [node.op for node in graph.verify().nodes] == ["mul"]
