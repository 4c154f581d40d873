"""What stands for a saved array between forward and backward.

    forward saves   an array of its own      a leaf's array      any array, under memory.offload
    the node holds  the array                Pack(leaf)          Pack(array in the host's memory)
    backward gets   the array                leaf._data          the array, brought back

A leaf is held by name, so that its array may be elsewhere in between (ZeRO frees weights). Packers
run in a fixed order, each on what the one before it holds:

    round      bfloat16 nodes compute in float32 and hold half of the bytes      (precision/bf16.py)
    by name    a leaf that wants a gradient                                      (here)
    packers    those of the Mode: ZeRO's gather, then offload

    packer(node, held, inputs, outputs) -> None, or (what is held now, undo)     undo(held) -> held

The walk unpacks once for each node. A saved input is held with its version: changing it in place
before backward is an error.      Test: tests/test_saved.py
"""

from functools import partial

from minidl import backend  # tensors and nodes it knows by their attributes


class Pack:
    """In a node's `_saved` in place of an array, which is `undo(held)`; held may be a Pack, too."""

    __slots__ = ("held", "undo")

    def __init__(self, held, undo):
        self.held, self.undo = held, undo


def pack(node, inputs, arrays, outputs, packers):
    """Put in `node._saved` what is to be held, and note the versions of the inputs in it."""
    packed = []
    for s in node._saved:
        packed.append(None if s is None else _pack(node, s, inputs, arrays, outputs, packers))
    node._saved = tuple(packed)


def _pack(node, s, inputs, arrays, outputs, packers):
    undos = []
    if type(s) is Pack:  # rounded
        undos.append(s.undo)
        s = s.held
    kept, sources = s, []
    for x, array, needed in zip(inputs, arrays, node.needs):
        if hasattr(x, "version") and (s is array or backend.same_memory(s, array)):
            sources.append(x)
            if needed and x.grad_fn is None and kept is s:
                if s is array:
                    kept = x
                    undos.append(_data)
                elif backend.is_reshaped(s, array):
                    kept = x
                    undos.append(partial(_reshaped, shape=s.shape))
    held = kept
    for packer in packers:
        if (found := packer(node, held, inputs, outputs)) is not None:
            held, undo = found
            undos.append(undo)
    if held is kept:  # else it is a copy, which nobody can change in place
        node.saved_inputs += [(x, x.version) for x in sources]
    for undo in reversed(undos):
        held = Pack(held, undo)
    return held


def _data(leaf):
    if leaf.bring is not None:
        leaf.bring()
    return leaf._data


def _reshaped(leaf, shape):
    return _data(leaf).reshape(shape)


def unpack(s):
    """The array that s, an entry of `_saved`, stands for."""
    return s.undo(unpack(s.held)) if type(s) is Pack else s


class Saved:
    """`node.saved`: the arrays behind `_saved`. The walk unpacks once, for the time of backward."""

    def __get__(self, node, owner):
        return tuple([unpack(s) for s in node._saved])


def held(node):
    """What the node holds for backward: arrays, and what stands for the others."""
    for s in node._saved or ():
        while type(s) is Pack:
            s = s.held
        yield s


def check(node):
    """Refuse to differentiate through what is gone or was overwritten."""
    if node._saved is None:
        raise RuntimeError(
            f"backward through {type(node).__name__} a second time: what it saved was freed. "
            "Pass retain_graph=True to the first backward")
    for x, version in node.saved_inputs:
        if x.version != version:
            kind = "leaf" if x.is_leaf else "tensor"
            raise RuntimeError(
                f"a {kind} of shape {x.shape} that {type(node).__name__} saved was changed in "
                f"place between forward and backward (version {version} then, {x.version} now): "
                "the gradient would be wrong. Step the optimizer after backward")
