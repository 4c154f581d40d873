"""The bytes that a graph keeps for backward: the activation memory of a forward.

    saved_bytes(loss)       1,048,576
    saved_by_op(loss)       {"Linear": 786,432, "Gelu": 262,144}

Test: tests/memory/test_saved_bytes.py
"""

from minidl import saved
from minidl.backend import buffer_of
from minidl.backward import leaf_uses, nodes


def saved_bytes(*roots):
    """Returns how many bytes the graph of `roots` keeps for backward. Each buffer counts once.
    Leaves, and arrays that were moved to the host's memory (offload), do not count."""
    return sum(saved_by_op(*roots).values())


def saved_by_op(*roots):
    """Returns {name of a Function: the bytes that it keeps}. The bytes are counted as in
    saved_bytes(). If several Functions keep the same buffer, its bytes count only for the Function
    that the walk from the roots finds first."""
    counted = {id(buffer_of(leaf.array)) for leaf in leaf_uses(roots)}
    by_op = {}
    for node in nodes(roots):
        for buffer in (buffer_of(s) for s in saved.held_by(node) if hasattr(s, "base")):
            if id(buffer) not in counted:
                counted.add(id(buffer))
                name = type(node).__name__
                by_op[name] = by_op.get(name, 0) + buffer.nbytes
    return by_op
