"""What stands for a saved array between forward and backward.

    forward saves   an array of its own      a leaf's array      any array, under memory.offload
    the node holds  the array                the leaf            Pack(array in the host's memory)
    backward gets   the array                leaf.array          the array, brought back

A leaf is held by name, so that its array may be elsewhere in between (ZeRO frees weights). What
may take an array's place comes in a fixed order, each on what the one before it holds:

    round      bfloat16 nodes compute in float32 and hold half of the bytes      (precision/bf16.py)
    by name    a leaf that wants a gradient                                      (here)
    packers    those of the Mode: ZeRO's gather, then offload

    packer(node, held, inputs, outputs) -> None, or (what is held now, undo: array -> array)

A saved input is noted with its version: changing it in place before backward is an error.
Test: tests/test_saved.py
"""

from numpy import ndarray

from minidl import backend  # tensors and nodes it knows by their attributes


class Pack(tuple):
    """(held, undo): in a node's `_saved` in place of the array undo(unpack(held))."""


def pack(node, inputs, arrays, outputs, packers):
    """Put in `node._saved` what is to be held, and note the versions of the inputs in it."""
    packed = []
    notes = []
    edges = node.edges
    node.saved_inputs = notes
    for s in node._saved:
        if type(s) is ndarray and s.base is None and not packers:
            own = s  # memory of its own: that of no input, or of one whose array it is
            i = 0
            for array in arrays:
                if array is own:
                    x = inputs[i]
                    edge = edges[i]
                    if edge is not None or hasattr(x, "version"):
                        notes.append((x, x.version))
                        if edge is x:  # a leaf
                            s = x
                i += 1
        else:
            s = _packed(s, node, inputs, arrays, outputs, packers)
        packed.append(s)
    node._saved = tuple(packed)


def _packed(s, node, inputs, arrays, outputs, packers):
    """What is held for any s: rounded, a view of an input's array, going elsewhere."""
    undos = []
    noted = []
    if type(s) is Pack:  # rounded
        s, *undos = s

    held = s
    owner = getattr(s, "base", None)
    for x, array, edge in zip(inputs, arrays, node.edges):
        if not hasattr(x, "version"):
            continue
        if s is not array:  # then perhaps a view of the same memory
            if owner is None:
                continue
            if owner is not array and owner is not getattr(array, "base", None):
                continue
        noted.append((x, x.version))
        if edge is x and held is s:  # a leaf, the first one that fits
            if s is array:
                held = x
            elif backend.is_reshaped(s, array):
                held = x
                undos.append(lambda array, shape=s.shape: array.reshape(shape))

    kept = held
    if s is not None:
        for packer in packers:
            found = packer(node, held, inputs, outputs)
            if found is not None:
                held, undo = found
                undos.append(undo)
    if held is kept:  # else a copy, which nobody can change in place
        node.saved_inputs += noted
    for undo in reversed(undos):
        held = Pack((held, undo))
    return held


def unpack(s):
    """The array that s, an entry of `_saved`, stands for."""
    if type(s) is ndarray:
        return s
    if type(s) is Pack:
        held, undo = s
        return undo(unpack(held))
    return backend.array_of(s)  # a leaf's


class Saved:
    """`node.saved`: the arrays behind `_saved`; the walk sets it for the time of a backward."""

    def __get__(self, node, owner):
        return tuple(map(unpack, node._saved))


def held(node):
    """What the node holds for backward: arrays, leaves, and what stands for other arrays."""
    for s in node._saved or ():
        while type(s) is Pack:
            s, _ = s
        yield s


def check(node):
    """Refuse to differentiate through what is gone or was overwritten."""
    if node._saved is None:
        raise RuntimeError(f"backward through {type(node).__name__} a second time: what it saved "
                           "was freed. Pass retain_graph=True to the first backward")
    for x, version in node.saved_inputs:
        if x.version != version:
            kind = "leaf" if x.is_leaf else "tensor"
            raise RuntimeError(
                f"a {kind} of shape {x.shape} that {type(node).__name__} saved was changed in "
                f"place between forward and backward (version {version} then, {x.version} now): "
                "the gradient would be wrong. Step the optimizer after backward")
