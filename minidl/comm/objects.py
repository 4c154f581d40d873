"""Python objects as messages, and the three collectives that move them.

    settings = objects.broadcast(t, settings)      every rank gets the object of rank 0
    reports = objects.gather(t, report)            rank 0 gets the list of all ranks' objects
    names = objects.all_gather(t, hostname)        every rank gets the list of all ranks' objects

These collectives move any object that Python can pickle. The sizes are sent first, so there are two
rounds of messages. For gradients use the collectives of arrays, which are faster.

A message is a header of int64, then the raw bytes of each array inside the object, then the pickle
of the rest. Each part is padded to a multiple of 8 bytes:

    number of arrays, size of the pickle, size of each array | array | array | ... | pickle

So the sender copies an array once. The receiver copies no array, because its arrays are views of
the message. Unpickling can run any code, so accept such messages only from ranks of the same job.

Test: tests/comm/test_objects.py   Used by: select.py, throttled.py, watch.py, rpc.py, the tutorials
"""

from __future__ import annotations

import itertools
import pickle
from typing import TYPE_CHECKING

import numpy as np

from minidl.comm import ring_blocks, scatter_gather, tree
from minidl.comm.collective import collective

if TYPE_CHECKING:
    from typing import Any

    from minidl.comm.transport.protocol import Transport


@collective(own_args=("value",), tensors=False)
def broadcast(t: Transport, value: Any, root: int = 0) -> Any:
    """Sends root's `value` to all ranks, and returns it on every rank. The `value` of the other
    ranks is ignored."""
    message = pack(value) if t.rank == root else None
    size = tree.broadcast(t, np.array([0 if message is None else len(message)]), root)
    if message is None:
        message = np.empty(size[0], np.uint8)
    return unpack(tree.broadcast(t, message, root))


@collective(own_args=("value",), tensors=False)
def gather(t: Transport, value: Any, root: int = 0) -> list[Any] | None:
    """Sends every rank's `value` to root. Returns the list of these values, in rank order, on root.
    Returns None on the other ranks."""
    message = pack(value)
    bounds = ring_blocks.bounds_of(t, len(message))
    messages = scatter_gather.gather(t, message, root, bounds)
    return None if messages is None else _unpack_all(messages, bounds)


@collective(own_args=("value",), tensors=False)
def all_gather(t: Transport, value: Any) -> list[Any]:
    """Sends every rank's `value` to all ranks. Returns the list of these values, in rank order."""
    return _unpack_all(*ring_blocks.all_gather_v(t, pack(value)))


def pack(value):
    """Returns the message that holds the object `value`, a 1-d uint8 array."""
    text, arrays = pickled(value)
    header = np.array([len(arrays), len(text), *map(len, arrays)], np.int64)
    parts = [header.view(np.uint8)]
    for part in (*arrays, np.frombuffer(text, np.uint8)):
        parts += [part, np.zeros(-len(part) % 8, np.uint8)]  # padding aligns the next part
    return np.concatenate(parts)


def unpack(message):
    """message: the result of pack(value). Returns this value. Arrays inside the value are views of
    the message."""
    n_arrays, n_text = message[:16].view(np.int64).tolist()
    at = 16 + 8 * n_arrays
    sizes = message[16:at].view(np.int64).tolist()
    arrays = []
    for size in sizes:
        arrays.append(message[at : at + size])
        at += size + -size % 8
    return pickle.loads(message[at : at + n_text], buffers=arrays)


def pickled(value):
    """Pickles `value`, but does not put the contents of its arrays into the pickle. Returns (the
    pickle, a list of these contents as 1-d uint8 arrays)."""
    buffers = []
    text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return text, [np.frombuffer(b.raw(), np.uint8) for b in buffers]


def _unpack_all(messages, bounds):
    return [unpack(messages[begin:end]) for begin, end in itertools.pairwise(bounds)]
