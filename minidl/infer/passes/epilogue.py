"""Turns elementwise lines after a product into steps that run before the result is written.

    %0 = linear(x, w, b)
    %1 = gelu(%0)                      %2 = linear(x, w, b) then gelu(.) then add(., %9)
    %2 = add(%1, %9)

Exactly one line must read the product's result. Each other operand of this line must be a number,
an array of the result's shape, or a vector along the last dimension (for an image, along the
channels). A step may read a residual that is computed after the product's own line. So the product
moves down to the line of its last step.
Test: tests/infer/passes/test_epilogue.py
"""

from minidl.infer import code
from minidl.infer.graph import Step, Value

PRODUCTS = ("linear", "matmul", "conv2d", "linear_int8", "linear_weights", "conv_int8")
IMAGES = ("conv2d", "conv_int8")  # operations whose result is (N, C, H, W)


def epilogue(graph):
    """Turns lines into steps of the product before them. Returns how many."""
    n = 0
    for node in [node for node in graph.nodes if node.op in PRODUCTS]:
        while (user := only_user(graph, node)) is not None and absorb(graph, node, user):
            n += 1
    return n


def only_user(graph, node):
    """Returns the only line that reads the node's result. Returns None if several lines read the
    result, if one line reads the result twice, or if the graph returns the result."""
    found = graph.users().get(node.output, [])
    return found[0] if len(found) == 1 and node.output not in graph.outputs else None


def absorb(graph, node, user):
    """Makes `user` a step of `node` if this is possible. Returns True if it was possible."""
    y = user.output
    if user.steps or user.kind is None or y.dtype != node.output.dtype or (
            y.shape != node.output.shape) or not code.is_elementwise(
            user.op, user.attributes, user.inputs, y.dtype):
        return False
    others = [x for x in user.inputs if isinstance(x, Value) and x is not node.output]
    if node.op in IMAGES:  # a vector operand must be along the channels
        good = all(channel_vector(v, y.shape) is not None for v in others)
    else:
        good = all(v.dtype == y.dtype and code.operand(0, v, y.shape) for v in others)
    if not good:
        return False
    operands, place = [], len(node.steps) - 1
    for x in user.inputs:
        if isinstance(x, Value) and x is not node.output:
            operands.append(("in", len(node.inputs)))
            node.inputs.append(x if node.op not in IMAGES else channel_vector(x, y.shape))
        else:
            operands.append(("v", place) if x is node.output else x)
    node.steps += Step(user.op, user.kind, tuple(operands), user.attributes),
    # The product moves to the place of its last step. All operands of this step are computed there.
    graph.nodes.remove(node)
    graph.nodes[graph.nodes.index(user)] = node
    node.outputs = [y]
    return True


def channel_vector(v, shape):
    """Returns v if it can be an operand of a step on an image (N, C, H, W), else None. v must have
    the image's shape, or be one number, or be a constant (C, 1, 1)."""
    if v.dtype.kind != "f":
        return None
    if v.shape == shape or v.array is not None and v.array.size == 1:
        return v
    if v.array is not None and v.shape[-3:] == (shape[1], 1, 1) and v.array.size == shape[1]:
        return v
    return None
