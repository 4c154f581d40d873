"""Chains: which lines become one, and that they compute the same."""

import minidl
from minidl import infer
from minidl.infer.passes import chain
from tests.infer.models import array, same

ROW, COLUMN = minidl.tensor(array(4, seed=1)), minidl.tensor(array(3, 1, seed=2))


def run(model):
    x = minidl.tensor(array(3, 4))
    graph = infer.trace(model, x)
    n = chain(graph)
    same(graph.verify().run(x.array), model(x))
    return n, [(node.op, len(node.steps)) for node in graph.nodes]


def test_elementwise_lines_become_one():
    assert run(lambda x: ((x + ROW).sigmoid() * x - COLUMN).relu()) == (4, [("chain", 5)])


def test_both_operands_may_be_chains():
    assert run(lambda x: (x * 2.0).exp() + (x + ROW).tanh()) == (4, [("chain", 5)])
    assert run(lambda x: (x * 2.0) * (x * 2.0)) == (2, [("chain", 3)])


def test_a_result_that_two_lines_read_ends_a_chain():
    def model(x):
        y = x.exp()
        return (y + y.sum()) * 2.0

    assert run(model) == (1, [("chain", 1), ("sum", 0), ("chain", 2)])


def test_a_result_that_one_line_reads_twice_does_not():
    def model(x):
        y = x.exp()
        return y * y + y.shape[0]

    assert run(model) == (2, [("chain", 3)])


def test_what_is_broadcast_is_not_computed_again():
    assert run(lambda x: x + COLUMN.exp().tanh() * x.sum(1, keepdim=True).exp()) == (
        3, [("sum", 0), ("chain", 4), ("chain", 1)])


def test_other_dtypes_stay():
    assert run(lambda x: (x.double() * 2.0 + 1.0).float())[0] == 0
