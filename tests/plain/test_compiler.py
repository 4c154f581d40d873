"""The page and the real compiler: the same lines, the same chains, the same values."""

import numpy as np
import pytest

import minidl
from minidl import infer
from minidl.infer.passes.chain import chain
from minidl.plain import compiler

RNG = np.random.default_rng(0)
ARRAYS = {"x": RNG.normal(size=(3, 4)), "w": RNG.normal(size=(4, 4)), "b": RNG.normal(size=4),
          "row": RNG.normal(size=(1, 4))}
PROGRAMS = {
    "mlp": lambda x, w, b, row: ((x @ w + b).relu() @ w + b).relu() @ w + b,
    "chain": lambda x, w, b, row: ((x + b).exp() * x + x).relu(),
    "both operands": lambda x, w, b, row: (x * b).exp() + (x + row).relu(),
    "two readers": lambda x, w, b, row: two_readers(x, w),
    "read twice by one": lambda x, w, b, row: twice(x),
    "broadcast": lambda x, w, b, row: x + row.exp().relu() * x,
}


def two_readers(x, w):
    h = (x + x).relu()
    return (h.exp() @ w) * h + x


def twice(x):
    h = x.exp()
    return h * h + x


@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_chains_and_values_are_the_real_ones(name):
    program = PROGRAMS[name]
    lines = compiler.trace(program, **ARRAYS)
    single = [minidl.tensor(x.astype("f4")) for x in ARRAYS.values()]  # chains are of float32
    graph = infer.trace(lambda *tensors: program(*tensors), *single)
    assert [line[0].operation for line in lines] == [node.op for node in graph.nodes]

    want = program(*map(minidl.tensor, ARRAYS.values())).numpy()
    chain(graph)
    fused = compiler.fuse(lines)
    # sorted: of two operands' steps either may come first
    ours = [sorted(step.operation for step in line) for line in fused]
    theirs = [sorted(step.op for step in node.steps) or [node.op] for node in graph.nodes]
    assert ours == theirs
    for some in (lines, fused):
        np.testing.assert_array_equal(compiler.run(some, **ARRAYS), want)
