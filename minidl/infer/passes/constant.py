"""Computes the lines that read only constants and parameters. A plan then holds the results.

    %1 = embedding(constant int64[256], position.weight)      constant float32[256, 256]

A plan is valid only if the parameters do not change (Guards, in trace.py). So parameters count as
constants. A line is not computed here if its result is much larger than its operands, as in a
broadcast. The graph has no lines that draw random numbers, because trace refuses them.
Test: tests/infer/passes/test_constant.py
"""

from minidl.infer.graph import Value


def constant(graph, largest=4):
    """Computes the lines that read only constants, and replaces each line by its result. Returns
    the number of these lines. largest: a line is not computed if its result has more than 4 KiB and
    more than `largest` times the bytes of its operands."""
    kept, n = [], 0
    for node in graph.nodes:
        known = all(v.array is not None for v in node.values)
        size = sum(v.n_bytes for v in node.values)
        if not known or sum(v.n_bytes for v in node.outputs) > max(largest * size, 4096):
            kept.append(node)
            continue
        made = node.evaluate([x.array if isinstance(x, Value) else x for x in node.inputs])
        for value, array in zip(node.outputs, made, strict=True):
            array = array.copy()  # a view of a parameter would change with the parameter
            graph.replace(value, Value(array.shape, array.dtype, None, array))
        n += 1
    graph.nodes = kept
    return n
