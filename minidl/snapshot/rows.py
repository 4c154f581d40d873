"""Saves arrays whose rows are divided among the ranks, for example the embeddings of a table.

Another example is `place`, an array of a stream's source. It has a row for each partition, and the
row holds how far this partition was read:

    rank   its rows are for       array in runs/step-*.safetensors     its rows are for
    0      partitions 0, 2        rows/source/place                    partitions 0, 2, 1
    1      partition 1

The file has the rows of rank 0 first, then the rows of rank 1.

An object given to snapshot.save has a state_dict(). It may also have `rows()`, which returns {name:
array}. The first axis of each array counts this rank's rows. On loading, the object's `load_rows()`
gets the rows of all ranks that saved, and keeps the rows of this rank. Each row contains the number
of a partition or an id. So the rows can be divided among any number of ranks. During the load each
rank holds all rows.
Test: tests/snapshot/test_rows.py   Used by: snapshot.py
"""

import math

import numpy as np

from minidl.comm import objects
from minidl.snapshot.regions import Piece, whole


def pieces(t, others):
    """Yields the Pieces of this rank's rows. First the ranks exchange how many rows each rank
    has."""
    for key, it in others.items():
        if not hasattr(it, "rows"):
            continue
        mine = it.rows()
        n_rows = {name: len(array) for name, array in mine.items()}
        all_ranks = [n_rows] if t is None else objects.all_gather(t, n_rows)
        before = all_ranks[:0 if t is None else t.rank]
        for name, array in mine.items():
            width = math.prod(array.shape[1:])
            first = width * sum(n[name] for n in before)
            shape = (sum(n[name] for n in all_ranks), *array.shape[1:])
            yield Piece(key_of(key, name), shape, array.dtype, first, first + array.size,
                        lambda array=array: array.reshape(-1))


def arrays_of(others):
    """Returns [(key, array)] of this rank's rows."""
    return [(key_of(key, name), array) for key, it in others.items() if hasattr(it, "rows")
            for name, array in it.rows().items()]


def targets(index, others):
    """Makes empty arrays for the rows of all ranks. Returns them twice: as {object's key: {name:
    array}}, and as a list of (key, array, Region), the targets to fill."""
    found, wanted = {}, []
    for key in (key for key, it in others.items() if hasattr(it, "rows")):
        found[key], start = {}, key_of(key, "")
        for name in (name for name in index["tensors"] if name.startswith(start)):
            saved = index["tensors"][name]
            array = np.empty(saved["shape"], saved["dtype"])
            found[key][name[len(start):]] = array
            wanted.append((name, array, whole(name, array)))
    return found, wanted


def key_of(key, name):
    return f"rows/{key}/{name}"
