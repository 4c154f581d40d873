"""Every collective keeps rule 3 of transport.py: it touches no buffer in flight, and waits for all.

A simulated or a fast network forgives both: what was sent is copied already. The all-reduces are in
test_every_all_reduce.py.
"""

import numpy as np
import pytest

from minidl.comm import all_to_all, average, compressed, objects, ring, ring_blocks
from minidl.comm import scatter_gather as sg
from minidl.comm import tree
from tests.comm.careful import Careful
from tests.conftest import ranks


def block(t):
    return np.full(5, t.rank, "f4")


def whole(t):
    return np.arange(5.0 * t.size, dtype="f4") + t.rank


def bounds(t):
    return range(0, 5 * t.size + 1, 5)


COLLECTIVES = {
    "ring.reduce_scatter": lambda t: ring.reduce_scatter(t, whole(t)),
    "ring.all_gather": lambda t: ring.all_gather(t, whole(t)),
    "ring_blocks.reduce_scatter": lambda t: ring_blocks.reduce_scatter(t, whole(t), bounds(t)),
    "ring_blocks.all_gather_v": lambda t: ring_blocks.all_gather_v(t, block(t)[t.rank % 3:]),
    "tree.broadcast": lambda t: tree.broadcast(t, whole(t), t.size - 1),
    "tree.reduce": lambda t: tree.reduce(t, whole(t), t.size - 1),
    "all_to_all.all_to_all": lambda t: all_to_all.all_to_all(t, whole(t).reshape(t.size, 5)),
    "all_to_all.all_to_all_v": lambda t: all_to_all.all_to_all_v(t, whole(t), [5] * t.size),
    "scatter_gather.scatter": lambda t: sg.scatter(t, whole(t), block(t), t.size - 1),
    "scatter_gather.gather": lambda t: sg.gather(t, block(t), t.size - 1),
    "average.mean": lambda t: average.mean(t, whole(t).astype("f2")),
    "compressed.all_reduce": lambda t: compressed.all_reduce(t, whole(t)),
    "compressed.sparse_all_reduce": lambda t: compressed.sparse_all_reduce(
        t, np.arange(t.rank + 1), np.ones(t.rank + 1), 100),
    "objects.all_gather": lambda t: objects.all_gather(t, "a" * t.rank),
}


@pytest.mark.parametrize("name", COLLECTIVES)
@ranks(2, 3, 4, 5, 8, mpi=False)
def test_no_buffer_is_touched_before_its_request_was_waited_for(t, name):
    careful = Careful(t)
    COLLECTIVES[name](careful)
    assert careful.pending == []  # and every request was
