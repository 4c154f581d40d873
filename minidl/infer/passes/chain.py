"""Joins elementwise lines into one chain, which reads every array once and writes one array.

The plain form: minidl/plain/compiler.py, `fuse`. This file works on lines of the graph, allows
numbers as operands, and makes one kernel for each chain.

    %1 = mul(x, %0)
    %2 = sigmoid(%1)              %3 = chain(x, %0, b) then v0 = mul(x, %0)
    %3 = add(%2, b)                                    then sigmoid(.) then add(., b)

The code generator of @minidl.fuse writes the kernel. A line joins the chain that reads its result.
Two conditions must be true: no other line reads this result, and the result has the chain's shape.
Without the second condition, the chain would compute the same element several times. This would
take longer than writing the result and reading it. A chain reads a broadcast operand through
strides of 0.
Test: tests/infer/passes/test_chain.py
"""

from minidl.infer import code
from minidl.infer.graph import Step, Value


def chain(graph):
    """Joins lines into chains. Returns how many lines were joined to another line."""
    n = 0
    for node in list(graph.nodes):
        if is_link(node):
            as_chain(node)
    # The loop goes from the last line to the first, because a line joins the chain that reads its
    # result.
    for node in reversed(list(graph.nodes)):
        while node in graph.nodes and node.kind is None and (before := link(graph, node)):
            join(node, before)
            graph.nodes.remove(before)
            n += 1
    return n


def is_link(node):
    """Returns True if the line can be a step of a chain. Such a line is elementwise, all its arrays
    have the dtype of its result, and the result is not empty."""
    return node.kind is not None and not node.steps and len(node.outputs) == 1 and (
        code.is_elementwise(node.op, node.attributes, node.inputs, node.output.dtype)) and all(
        v.dtype == node.output.dtype for v in node.values) and bool(node.values) and (
        node.output.n_bytes > 0)


def as_chain(node):
    """Turns the line into a chain of one step, in place."""
    values = list(dict.fromkeys(node.values))
    operands = tuple(("in", values.index(x)) if isinstance(x, Value) else x for x in node.inputs)
    node.steps = Step(node.op, node.kind, operands, node.attributes),
    node.op, node.kind, node.inputs, node.attributes, node.n_own = "chain", None, values, {}, 0


def link(graph, node):
    """Returns a chain that can be joined with `node`, or None. The chain's result must have the
    shape of the node's result, and only `node` may read it."""
    users, producers = graph.users(), graph.producers()
    for v in node.values:
        before = producers.get(v)
        if before is not None and before.kind is None and v.shape == node.output.shape and (
                set(users[v]) == {node}) and v not in graph.outputs:
            return before
    return None


def join(node, before):
    """Puts the steps of `before` in front of the node's steps."""
    made = before.output
    inputs = list(dict.fromkeys([*before.inputs, *(v for v in node.inputs if v is not made)]))
    shift = len(before.steps)

    def moved(x):
        if not isinstance(x, tuple):
            return x
        if x[0] == "v":
            return "v", x[1] + shift
        value = node.inputs[x[1]]
        return ("v", shift - 1) if value is made else ("in", inputs.index(value))

    first = [s._replace(operands=tuple(
        ("in", inputs.index(before.inputs[x[1]])) if isinstance(x, tuple) and x[0] == "in" else x
        for x in s.operands)) for s in before.steps]
    then = [s._replace(operands=tuple(map(moved, s.operands))) for s in node.steps]
    node.inputs, node.steps = inputs, (*first, *then)
