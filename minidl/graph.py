"""What is above a result: the functions that made it, its leaves, the bytes kept for backward.

    leaf_uses([loss])       {w: 2, b: 1}      how many gradients each leaf will get
    saved_bytes(loss)       1,048,576         the activation memory of this forward

An edge is None (no gradient wanted), a leaf Tensor, or (Function, output slot); function.py makes
them, backward.py walks them.      Test: tests/test_graph.py
"""

from minidl.memory.ledger import buffer_of


def edge_to(x):
    """The edge by which a function that used the tensor x would lead to it."""
    return x if x.grad_fn is None else (x.grad_fn, x.slot)


def nodes(roots):
    """Every Function above the tensors `roots`, once. No recursion: chains are long."""
    seen = set()
    stack = [root.grad_fn for root in roots if root.grad_fn is not None]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += [edge[0] for edge in node.edges if isinstance(edge, tuple)]


def leaf_uses(roots):
    """{leaf: number of edges that lead to it} over the graph above `roots`: the leaves that
    backward will reach, and how many gradients each of them waits for."""
    edges = [edge_to(root) for root in roots if root.requires_grad]
    for node in nodes(roots):
        edges += node.edges
    uses = {}
    for edge in edges:
        if edge is not None and not isinstance(edge, tuple):
            uses[edge] = uses.get(edge, 0) + 1
    return uses


def saved_bytes(*roots):
    """Bytes that the graph above `roots` keeps for backward, each buffer once, leaves left out:
    the activation memory of this forward."""
    return sum(saved_by_op(*roots).values())


def saved_by_op(*roots):
    """`saved_bytes`, as {name of the Function: bytes}. What several keep counts for the one that
    the walk from the roots meets first."""
    counted = {id(buffer_of(leaf._data)) for leaf in leaf_uses(roots)}
    by_op = {}
    for node in nodes(roots):
        for buffer in (buffer_of(s) for s in node._saved or () if hasattr(s, "nbytes")):
            if id(buffer) not in counted:
                counted.add(id(buffer))
                name = type(node).__name__
                by_op[name] = by_op.get(name, 0) + buffer.nbytes
    return by_op
