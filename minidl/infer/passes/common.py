"""Removes common subexpressions and dead code.

    %1 = exp(x)
    %2 = exp(x)            the same line: all readers of %2 now read %1
    %3 = mul(%1, %2)       becomes mul(%1, %1)

Two lines are the same if they have the same operation, operands and attributes. Two constants of up
to 4 KiB are the same if they have the same bytes. Two larger constants are the same only if they
are the same array.
Test: tests/infer/passes/test_common.py
"""

import numpy as np

from minidl.infer.graph import Value


def common(graph):
    """Removes lines that repeat an earlier line. Returns how many."""
    seen, kept, n = {}, [], 0
    for node in graph.nodes:
        key = (node.op, node.kind, node.n_own, node.pad, tuple(map(_key, node.inputs)),
               _key(node.attributes), _key(node.steps))
        if key in seen:
            for mine, first in zip(node.outputs, seen[key].outputs, strict=True):
                graph.replace(mine, first)
            n += 1
        else:
            seen[key] = node
            kept.append(node)
    graph.nodes = kept
    return n


def _key(x):
    """Returns a hashable key of an operand. Two operands have equal keys only if the operands are
    equal."""
    if isinstance(x, Value):
        return _key(x.array) if x.array is not None else id(x)
    if isinstance(x, np.ndarray):
        return x.dtype.str, x.shape, x.tobytes() if x.nbytes <= 4096 else id(x)
    if isinstance(x, dict):
        return tuple(sorted((k, _key(v)) for k, v in x.items()))
    if isinstance(x, (list, tuple)):
        return type(x).__name__, *map(_key, x)
    return type(x).__name__, repr(x) if isinstance(x, (float, slice)) else x


def dead(graph):
    """Removes lines whose results are not read. Returns how many."""
    read, kept = {*graph.outputs}, []
    for node in reversed(graph.nodes):
        if any(v in read for v in node.outputs):
            read.update(node.values)
            kept.append(node)
    n = len(graph.nodes) - len(kept)
    graph.nodes = kept[::-1]
    return n
