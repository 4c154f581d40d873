"""Passes: each pass changes the graph in place, and returns the number of its changes.

    algebra.py       removes x * 1 and pairs of inverse transposes, joins two reshapes
    constant.py      computes lines whose inputs are all constants
    common.py        removes lines that repeat an earlier line, and lines whose result is not read
    batch_norm.py    folds a batch norm into the convolution before it
    epilogue.py      turns relu and other lines into steps of the product before them
    layout.py        puts the channels last for convolutions
    pooling.py       folds a pooling into the convolution before it
    chain.py         joins the remaining elementwise lines into chains

The order matters. When a batch norm is folded, the relu after it follows the convolution directly.
After epilogue, no line is left between two convolutions, so the layout need not change between
them. After every pass, `verify` accepts the graph, and the graph computes the same values.
Test: tests/infer/test_lower.py
"""

from minidl.infer.passes.algebra import algebra
from minidl.infer.passes.batch_norm import batch_norm
from minidl.infer.passes.chain import chain
from minidl.infer.passes.common import common, dead
from minidl.infer.passes.constant import constant
from minidl.infer.passes.epilogue import epilogue
from minidl.infer.passes.layout import layout
from minidl.infer.passes.pooling import pooling

PASSES = (algebra, constant, common, batch_norm, algebra, epilogue, layout, pooling, chain,
          dead)


def optimise(graph):
    """Runs the passes on the graph, in place. Returns {name of a pass: the number of its
    changes}."""
    counts = {}
    for run in PASSES:
        n = run(graph)
        graph.verify()
        counts[run.__name__] = counts.get(run.__name__, 0) + n
    return counts
