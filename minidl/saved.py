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

Changing what is saved before backward is an error. For that every memory counts how often it was
written in place: all tensors that look at it, views and the results of detach(), share one Memory.
A node notes what it saved with the count at that time, and the walk compares.
Test: tests/test_saved.py, tests/test_versions.py
"""

from numpy import ndarray

from minidl import backend  # tensors and nodes it knows by their attributes


class Memory:
    """What all tensors that look at the same memory share.

    version:   how often it was written in place
    replaced:  True when x[index] = y was recorded: x has a new Memory then, and tensors that look
               at the memory since before have a way back that is no longer right"""

    version = 0
    replaced = False


NO_TENSOR = object()  # in place of the Memory of what is no tensor


class Pack(tuple):
    """(held, undo): in a node's `_saved` in place of the array undo(unpack(held))."""


def pack(node, inputs, arrays, outputs, packers):
    """Put in `node._saved` what is to be held: a leaf for its array, what a packer makes of an
    array, else the array. Note the versions of the inputs and outputs that look at its memory.
    outputs: a list of Tensors."""
    all_held = []
    notes = node.saved_inputs = []  # (tensor or Memory, version)
    edges = node.edges
    for s in node._saved:
        undos = ()
        if s is None:
            all_held.append(None)
            continue
        if type(s) is Pack:  # rounded
            s, *undos = s
        owner = getattr(s, "base", None)  # None: s owns its memory
        held = s
        noted = len(notes)

        i = -1
        for array in arrays:
            i += 1
            if array is not s and (owner is None or owner is not array
                                   and owner is not getattr(array, "base", None)):
                continue  # it looks at other memory
            x = inputs[i]
            memory = getattr(x, "_memory", NO_TENSOR)
            if memory is not NO_TENSOR:
                notes.append((x, 0 if memory is None else memory.version))
                if edges[i] is x and held is s:  # a leaf, the first one that fits
                    if array is s:
                        held = x
                    elif backend.is_reshaped(s, array):
                        held = x
                        undos = *undos, lambda array, shape=s.shape: array.reshape(shape)

        if len(notes) == noted:  # else an output that looks at it has the Memory of that input
            for y in outputs:
                array = y.array
                if array is s or array.base is s or (
                        owner is not None and (owner is array or owner is array.base)):
                    memory = y.memory
                    notes.append((memory, memory.version))  # a node does not hold its results

        for packer in packers:
            found = packer(node, held, inputs, outputs)
            if found is not None:
                held, undo = found
                undos = *undos, undo
                del notes[noted:]  # it is a copy now, which nobody can change in place
        if undos:
            for undo in reversed(undos):
                held = Pack((held, undo))
        all_held.append(held)
    node._saved = tuple(all_held)


def note(y, tensors):
    """Note tensors that the backward of y will read, though its forward did not save them: indices.
    What is no Tensor is left out. Returns y."""
    if y.grad_fn is not None:
        y.grad_fn.saved_inputs = [*y.grad_fn.saved_inputs,
                                  *[(x, x.version) for x in tensors if hasattr(x, "_memory")]]
    return y


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


def held_by(node):
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
        memory = x if type(x) is Memory else x._memory
        if memory is not None and memory.version != version:
            what = "the result"  # noted by its memory: a node does not hold what it made
            if x is not memory:
                what = f"a {'leaf' if x.is_leaf else 'tensor'} of shape {tuple(x.shape)}"
            raise RuntimeError(
                f"{what} that {type(node).__name__} saved was changed in place between forward and "
                f"backward (version {version} then, {memory.version} now): the gradient would be "
                "wrong. Step the optimizer after backward")
