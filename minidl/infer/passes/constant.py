"""Evaluates, once, the lines that read only constants and parameters.

    %1 = embedding(constant int64[256], position.weight)      constant float32[256, 256]

A plan is valid only while the parameters stay the same (Guards, in trace.py), so they count as
constants. A line stays if its result has more than `largest` times the bytes of its operands (and
more than 4 KiB): a broadcast is such a line. Random numbers never come here: trace refuses them.
Test: tests/infer/passes/test_constant.py
"""

from minidl.infer.graph import Value


def constant(graph, largest=4):
    """Evaluates lines of constants and removes them. Returns how many."""
    kept, n = [], 0
    for node in graph.nodes:
        known = all(v.array is not None for v in node.values)
        size = sum(v.n_bytes for v in node.values)
        if not known or sum(v.n_bytes for v in node.outputs) > max(largest * size, 4096):
            kept.append(node)
            continue
        made = node.evaluate([x.array if isinstance(x, Value) else x for x in node.inputs])
        for value, array in zip(node.outputs, made, strict=True):
            array = array.copy()  # a view of a parameter would change with it
            graph.replace(value, Value(array.shape, array.dtype, None, array))
        n += 1
    graph.nodes = kept
    return n
