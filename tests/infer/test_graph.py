"""The graph: readable, in SSA form, run line by line."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.infer.graph import Graph, Node, Value
from minidl.ops.activations import Relu
from tests.infer.models import array, random_model, same


def test_a_graph_reads_like_the_model():
    minidl.manual_seed(0)
    text = str(infer.trace(nn.MLP(4, 3, 2).eval(), array(5, 4)))
    assert text.splitlines() == [
        "graph(x: float32[5, 4])",
        "  %0: float32[5, 3] = linear(x, 0.weight, 0.bias)",
        "  %1: float32[5, 3] = relu(%0)",
        "  %2: float32[5, 2] = linear(%1, 2.weight, 2.bias)",
        "  return %2"]


def test_steps_are_printed_behind_their_line():
    minidl.manual_seed(0)
    graph = infer.trace(nn.MLP(4, 3, 2).eval(), array(5, 4))
    infer.optimise(graph)
    assert "%0: float32[5, 3] = linear(x, 0.weight, 0.bias) then relu(.)" in str(graph)


def value(name=None):
    return Value((2,), np.float32, name)


def relu(x, y):
    return Node("relu", Relu, [x], {}, [y])


@pytest.mark.parametrize("nodes, outputs, message", [
    (lambda x, a, b: [relu(a, b), relu(x, a)], "b", "no line before it makes"),
    (lambda x, a, b: [relu(x, a), relu(x, a)], "a", "an earlier line. Each value"),
    (lambda x, a, b: [relu(x, a)], "b", "returns a float32"),
])
def test_the_verifier_refuses_what_could_not_run(nodes, outputs, message):
    known = {"x": value("x"), "a": value(), "b": value()}
    graph = Graph([known["x"]], nodes(*known.values()), [known[outputs]])
    with pytest.raises(ValueError, match=message):
        graph.verify()


def test_the_verifier_refuses_a_step_that_reads_a_later_one():
    graph = infer.trace(lambda x: (x * 2.0).relu(), minidl.tensor(array(3)))
    infer.optimise(graph)
    node, = graph.nodes
    first, second = node.steps
    node.steps = first._replace(operands=(("v", 1), 2.0)), second
    with pytest.raises(ValueError, match="step 0 reads the result of step 1; wanted an input"):
        graph.verify()


@pytest.mark.parametrize("seed", range(5))
def test_a_graph_computes_what_its_model_does(seed):
    model, x = random_model(seed), minidl.tensor(array(2, 3, 8, seed=seed))
    with minidl.no_grad():
        same(infer.trace(model, x).run(x.array), model(x))
