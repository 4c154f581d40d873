"""Removes lines that change nothing, and pairs of lines where the second undoes the first.

    %1 = mul(%0, 1.0)                        x * 1, x / 1, x + 0, x - 0, x ** 1 become %0
    %2 = permute(%1, (0, 2, 1))              two permutes become one, or none
    %3 = reshape(reshape(x, ...), ...)       becomes one reshape, from x to the last shape
    %4 = neg(neg(x))                         becomes x

x * 0 is not replaced by 0, because the product is NaN where x is NaN or infinite. x + 0 is replaced
by x, although -0.0 + 0 is 0.0, because the two zeros are equal.
Test: tests/infer/passes/test_algebra.py
"""

import numpy as np

from minidl.infer.graph import Value
from minidl.infer.passes.common import dead
from minidl.ops.dims import normalize_dims
from minidl.ops.shape import Permute, Reshape

NEUTRAL = {"mul": 1, "div": 1, "add": 0, "sub": 0, "pow": 1}


def algebra(graph):
    """Replaces lines by simpler lines. Returns how many."""
    producers, n = graph.producers(), 0
    for node in graph.nodes:
        if node.steps or not node.inputs:
            continue
        before = producers.get(node.inputs[0])
        same = unchanged(node)
        if same is None and before is not None and not before.steps:
            same = undone(node, before)
        if same is not None:
            graph.replace(node.output, same)
            n += 1
        elif before is not None and not before.steps and joined(node, before):
            n += 1
    if n:
        # Other passes count the lines that read a value, so unused lines must be removed first.
        dead(graph)
    return n


def unchanged(node):
    """Returns the input that is equal to the line's result, or None."""
    if node.op in NEUTRAL:
        a, b = node.inputs
        pairs = [(a, b)] + [(b, a)] * (node.op in ("mul", "add"))
        for x, other in pairs:
            if isinstance(x, Value) and is_number(other, NEUTRAL[node.op]) and (
                    (x.shape, x.dtype) == (node.output.shape, node.output.dtype)):
                return x
    if node.kind is Reshape and node.inputs[0].shape == node.output.shape:
        return node.inputs[0]
    if node.kind is Permute and _dims(node) == tuple(range(len(node.output.shape))):
        return node.inputs[0]
    return None


def is_number(x, wanted):
    """Returns True if x is the number `wanted`, or a constant array with only this number. Returns
    False for a parameter, because the value of a parameter may change later."""
    if isinstance(x, Value):
        return x.array is not None and not x.name and x.array.size > 0 and bool(
            np.all(x.array == wanted))
    return type(x) in (int, float) and x == wanted


def undone(node, before):
    """Returns the input of `before` if `node` undoes what `before` does, else None."""
    source = before.inputs[0] if before.inputs else None
    if node.op == before.op == "neg":
        return source
    if node.kind is before.kind is Permute and len(source.shape) == len(node.output.shape):
        if tuple(_dims(before)[d] for d in _dims(node)) == tuple(range(len(source.shape))):
            return source
    if node.kind is before.kind is Reshape and source.shape == node.output.shape:
        return source
    return None


def joined(node, before):
    """Joins two reshapes or two permutes: `node` then reads the input of `before`, and does the
    work of the two lines. Returns True if this was possible."""
    if node.kind is before.kind is Reshape:
        node.inputs, node.attributes["shape"] = before.inputs[:], node.output.shape
        node.attributes["name"], node.op = "reshape", "reshape"
        return True
    if node.kind is before.kind is Permute:
        dims = tuple(_dims(before)[d] for d in _dims(node))
        node.inputs, node.op = before.inputs[:], "permute"
        node.attributes = {"dims": dims, "name": "permute"}
        return True
    return False


def _dims(node):
    return tuple(normalize_dims(node.attributes["dims"], len(node.output.shape), node.op))
