"""Folds a batch norm into the convolution or linear layer before it.

    y = (conv(x, w) + c - mean) * s + b,   s = gamma / sqrt(var + eps)
      = conv(x, w s) + (c - mean) s + b

c is the convolution's bias. gamma and b are the weight and the bias of the batch norm. In eval mode
mean and var are constants, as the weights are. So s is a constant, too. The new weights are
computed in float64 and rounded once. The pass folds only if no other line reads the convolution's
result, because this result no longer exists after folding.
Source: Jacob et al. 2018 (arXiv 1712.05877).   Test: tests/infer/passes/test_batch_norm.py
"""

import numpy as np

from minidl.infer.graph import Value

BEFORE = ("conv2d", "linear")


def batch_norm(graph):
    """Folds batch norms. Returns how many."""
    producers, n = graph.producers(), 0
    for node in list(graph.nodes):
        product = producers.get(node.inputs[0]) if node.op == "batch_norm" else None
        if product is None or product.op not in BEFORE or not folds(graph, node, product):
            continue
        x, w, c = product.inputs
        gamma, b = (None if v is None else v.array.astype(np.float64) for v in node.inputs[1:])
        mean, var = (v.astype(np.float64) for v in node.attributes["running"])
        s = 1 / np.sqrt(var + node.attributes["eps"]) * (1 if gamma is None else gamma)
        shift = ((0 if c is None else c.array.astype(np.float64)) - mean) * s
        shift += 0 if b is None else b
        weight = w.array.astype(np.float64) * s.reshape(-1, *[1] * (w.array.ndim - 1))
        product.inputs = [x, constant_of(weight), constant_of(shift)]
        graph.replace(node.output, product.output)
        graph.nodes.remove(node)
        n += 1
    return n


def folds(graph, node, product):
    """Returns True if the batch norm `node` can go into the weights of `product`."""
    if node.attributes["training"] or product.steps or product.output in graph.outputs or (
            len(graph.users()[product.output]) != 1):
        return False
    if product.op == "linear" and len(product.output.shape) != 2:  # the result is not (N, channels)
        return False
    return all(v is None or v.array is not None for v in (*product.inputs[1:], *node.inputs[1:]))


def constant_of(array):
    """Returns a constant Value with the array as float32."""
    array = array.astype(np.float32)
    return Value(array.shape, array.dtype, None, array)
