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


class Pack(tuple):
    """(held, undo): in a node's `_saved` in place of the array `undo(held)`. Held may be a Pack."""


def pack(node, inputs, arrays, outputs, packers):
    """Put in `node._saved` what is to be held, and note the versions of the inputs in it."""
    packed, notes = [], node.saved_inputs
    for s in node._saved:
        if s is None:
            packed.append(None)
            continue
        undos, n_noted = [], len(notes)
        if type(s) is Pack:  # rounded
            s, undo = s
            undos.append(undo)
        held, owner = s, getattr(s, "base", None)
        if owner is None:
            owner = s  # it owns its memory
        for x, array, needed in zip(inputs, arrays, node.needs):
            if array is owner or getattr(array, "base", None) is owner:  # an input, or a view of it
                if hasattr(x, "version"):
                    notes.append((x, x.version))
                if needed and x.grad_fn is None and held is s:
                    if s is array:
                        held = x
                        undos.append(_data)
                    elif backend.is_reshaped(s, array):
                        held = x
                        undos.append(partial(_reshaped, shape=s.shape))
        kept = held
        for packer in packers:
            if (found := packer(node, held, inputs, outputs)) is not None:
                held, undo = found
                undos.append(undo)
        if held is not kept:  # a copy, which nobody can change in place
            del notes[n_noted:]
        while undos:
            held = Pack((held, undos.pop()))
        packed.append(held)
    node._saved = tuple(packed)


def _data(leaf):
    return leaf._data


def _reshaped(leaf, shape):
    return leaf._data.reshape(shape)


def unpack(s):
    """The array that s, an entry of `_saved`, stands for."""
    if type(s) is Pack:
        held, undo = s
        return undo(unpack(held))
    return s


class Saved:
    """`node.saved`: the arrays behind `_saved`. The walk unpacks once, for the time of backward."""

    def __get__(self, node, owner):
        return tuple(map(unpack, node._saved))


def held(node):
    """What the node holds for backward: arrays, and what stands for the others."""
    for s in node._saved or ():
        while type(s) is Pack:
            s, _ = s
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
