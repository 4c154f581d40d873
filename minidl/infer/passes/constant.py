"""What is made of constants and parameters alone is made once, now.

    %1 = embedding(constant int64[256], position.weight)      constant float32[256, 256]

The plan takes parameters for granted anyway (Guards, in trace.py). Not folded: what would be more
than `largest` times its operands, such as a broadcast; random numbers, which trace refuses.
Test: tests/infer/passes/test_constant.py
"""

from minidl.infer.graph import Value


def constant(graph, largest=4):
    """How many lines were evaluated."""
    kept, n = [], 0
    for node in graph.nodes:
        known = all(v.array is not None for v in node.values)
        size = sum(v.n_bytes for v in node.values)
        if not known or sum(v.n_bytes for v in node.outputs) > max(largest * size, 4096):
            kept.append(node)
            continue
        made = node.evaluate([x.array if isinstance(x, Value) else x for x in node.inputs])
        for value, array in zip(node.outputs, made, strict=True):
            array = array.copy()  # no view of a parameter: it may change
            graph.replace(value, Value(array.shape, array.dtype, None, array))
        n += 1
    graph.nodes = kept
    return n
