"""What each rank has a part of, as rows: a stream's places, a table's embeddings.

    rank 0   partition 0, 2       runs/step-*.safetensors     rows/source/place   | 0 | 2 | 1 |
    rank 1   partition 1          one rank's after another's

An object that snapshot.save is given may have, beside its state_dict(), `rows()`: named arrays
whose first axes are this rank's rows. On loading, `load_rows()` gets those of all ranks that saved,
which it holds for that moment, and keeps its own: rows carry a partition or an id, so that any
number of ranks can share them.
Test: tests/snapshot/test_rows.py   Used by: snapshot.py
"""

import math

import numpy as np

from minidl.comm import objects
from minidl.snapshot.regions import Piece, whole


def pieces(t, others):
    """The Pieces of this rank's rows."""
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
    """({object's key: its rows, to be filled}, [(key, array, Region)])."""
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
