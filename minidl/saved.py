"""What a node holds for each array that forward saved, until backward reads it.

    forward saves   an array of its own      a leaf's array      any array, under memory.offload
    the node holds  the array                the leaf            Pack(array in the host's memory)
    backward gets   the array                leaf.array          the array, brought back

For a leaf the node holds the Tensor, not its array. So the array may be freed after forward, and be
gathered again before backward (ZeRO frees weights). Three steps may replace a saved array. Each
step works on the result of the previous step:

    round      a bfloat16 node computes in float32, but saves 2-byte values      (precision/bf16.py)
    leaf       the leaf replaces its array, if the leaf wants a gradient         (here)
    packers    the functions of the Mode: ZeRO's gather, then offload

    packer(node, held, inputs, outputs) -> None, or (what is held now, undo: array -> array)

It is an error to change a saved array in place before backward. To detect this error, every memory
has a version: the number of writes in place. All tensors that use the same memory, such as views
and the results of detach(), share one Memory object. A node records the versions of the arrays that
it saved. Before the node's backward, these versions are compared with the present versions.
Test: tests/test_saved.py, tests/test_versions.py
"""

from numpy import ndarray

from minidl import backend  # tensor.py is not imported: attributes show what a Tensor or node is


class Memory:
    """One object for all tensors that use the same memory.

    version:   the number of writes in place into the memory
    replaced:  True if a graph recorded x[index] = y. Then x has a new Memory object. Older views
               keep this object: their edges in the graph do not contain the write, so their
               gradients would be wrong"""

    version = 0
    replaced = False


NO_TENSOR = object()  # stands for the Memory of an input that is not a Tensor


class Pack(tuple):
    """(held, undo), an entry of a node's `_saved`. It stands for the array undo(unpack(held))."""


def pack(node, inputs, arrays, outputs, packers):
    """Replaces arrays in `node._saved`: the array of a leaf by the leaf, and other arrays by the
    result of a packer. If an input or output shares memory with a saved array, records the version
    of this memory in `node.saved_inputs`. outputs: a list of Tensors."""
    all_held = []
    notes = node.saved_inputs = []  # pairs (tensor or Memory, version)
    edges = node.edges
    for s in node._saved:
        undos = ()
        if s is None:
            all_held.append(None)
            continue
        if type(s) is Pack:  # s was rounded to bfloat16
            s, *undos = s
        owner = getattr(s, "base", None)  # None if s owns its memory
        held = s
        noted = len(notes)

        i = -1
        for array in arrays:
            i += 1
            if array is not s and (owner is None or owner is not array
                                   and owner is not getattr(array, "base", None)):
                continue  # this input uses other memory
            x = inputs[i]
            memory = getattr(x, "_memory", NO_TENSOR)
            if memory is not NO_TENSOR:
                notes.append((x, 0 if memory is None else memory.version))
                if edges[i] is x and held is s:  # x is the first leaf in the memory of s
                    if array is s:
                        held = x
                    elif backend.is_reshaped(s, array):
                        held = x
                        undos = *undos, lambda array, shape=s.shape: array.reshape(shape)

        # If an input uses the memory of s, all outputs that are views of s use this memory, too.
        # These outputs share the Memory of that input, which is noted already.
        if len(notes) == noted:
            for y in outputs:
                array = y.array
                if array is s or array.base is s or (
                        owner is not None and (owner is array or owner is array.base)):
                    memory = y.memory
                    # Notes the Memory and not y, because a node must not hold its results.
                    notes.append((memory, memory.version))

        for packer in packers:
            found = packer(node, held, inputs, outputs)
            if found is not None:
                held, undo = found
                undos = *undos, undo
                del notes[noted:]  # the node holds a copy: no tensor can change it in place
        if undos:
            for undo in reversed(undos):
                held = Pack((held, undo))
        all_held.append(held)
    node._saved = tuple(all_held)


def note(y, tensors):
    """Records the versions of `tensors`, so that check() also finds a change of one of them. Call
    note() for tensors that the backward of y reads, but that its forward did not save, such as
    indices. Skips values that are not Tensors. Returns y."""
    if y.grad_fn is not None:
        y.grad_fn.saved_inputs = [*y.grad_fn.saved_inputs,
                                  *[(x, x.version) for x in tensors if hasattr(x, "_memory")]]
    return y


def unpack(s):
    """Returns the array that s stands for. s is an entry of a node's `_saved`."""
    if type(s) is ndarray:
        return s
    if type(s) is Pack:
        held, undo = s
        return undo(unpack(held))
    return backend.array_of(s)  # s is a leaf


class Saved:
    """The attribute `node.saved`: the arrays that the entries of `_saved` stand for. While the
    node's backward runs, backward.py sets `node.saved` to these arrays. So each entry is unpacked
    only once."""

    def __get__(self, node, owner):
        return tuple(map(unpack, node._saved))


def held_by(node):
    """Yields everything that the node holds for backward: arrays, leaves, results of packers."""
    for s in node._saved or ():
        while type(s) is Pack:
            s, _ = s
        yield s


def check(node):
    """Raises RuntimeError if a saved array of the node was freed, or was changed in place since
    forward."""
    if node._saved is None:
        raise RuntimeError(f"backward reaches {type(node).__name__} a second time, but its saved "
                           "arrays were freed. Pass retain_graph=True to the first backward")
    for x, version in node.saved_inputs:
        memory = x if type(x) is Memory else x._memory
        if memory is not None and memory.version != version:
            what = "the result"  # x is a Memory, which was noted in place of a result
            if x is not memory:
                what = f"a {'leaf' if x.is_leaf else 'tensor'} of shape {tuple(x.shape)}"
            raise RuntimeError(
                f"{what} that {type(node).__name__} saved was changed in place between forward and "
                f"backward, so the gradient would be wrong. Its version was {version} in forward, "
                f"and is {memory.version} in backward. Call optimizer.step() after backward")
