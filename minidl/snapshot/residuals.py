"""Saves the state of gradient compression (parallel/data/compress.py) in a snapshot.

    written by 4 ranks    e0 e1 e2 e3       each rank's residual, momentum, ...
    loaded on 2 ranks     e0 + e2           rank 0 gets the sum over the old ranks 0, 2, 4, ...
                          e1 + e3           rank 1 gets the sum over the old ranks 1, 3, 5, ...
    loaded on 6 ranks     e0 e1 e2 e3 0 0

A residual is a part of the mean gradient that a rank has not sent yet. The sum of the residuals
over all ranks is the update that the parameters still lack. Loading on any number of ranks keeps
this sum. On the same number of ranks as before, each rank gets its own residual with the same bits.
Arrays that are equal on all ranks (PowerSGD's Q, 1-bit Adam's moments) are written once.

Test: tests/snapshot/test_residuals.py   Used by: regions.py, fit.py, snapshot.py
"""

from minidl.parallel.data.compress import Compressed


def key_of(kind, rank, name):
    """Returns the key of a rank's own array for the parameter `name`. kind: what the array is, such
    as "residual"."""
    return f"kept {kind} of rank {rank}/{name}"


def arrays(model):
    """Yields (kind, parameter's name, array, own) if the model is Compressed. Yields nothing for
    another model. own: True if each rank has its own array, False if the array is equal on all
    ranks."""
    if not isinstance(model, Compressed):
        return
    names = {p: name for name, p in model.module.named_parameters()}
    for bucket in model.reducer.buckets:
        for kind in bucket.own:
            for p, view in zip(bucket.params, bucket.views_of(kind), strict=True):
                yield kind, names[p], view, True
        for kind, common in bucket.common.items():
            for p, array in common.items():
                yield kind, names[p], array, False


def about(model):
    """Returns the entry "kept" of the snapshot's index: the method, its arrays, the number of ranks
    and the step count. Returns None if the model is not Compressed."""
    if not isinstance(model, Compressed):
        return None
    kinds = sorted({f"{kind}/{name}" for kind, name, _, _ in arrays(model)})
    return {"method": type(model.method).__name__, "kinds": kinds, "n_ranks": model.t.size,
            "steps": model.reducer.buckets[0].step}


def misfits(index, model, optimizer):
    """Yields a sentence for each difference between the snapshot and the model."""
    there, here = index.get("kept"), about(model)
    if there is None:  # a run without compression has no residuals
        return
    if here is None and optimizer is not None:
        yield (f"the snapshot holds residuals of {there['method']}, which this model would lose. "
               "Wrap the model in parallel.Compressed, as in the saved run. To use only the "
               "weights, load without an optimizer")
    elif here is not None and (here["method"], here["kinds"]) != (there["method"], there["kinds"]):
        yield (f"the snapshot holds {there['method']} with {len(there['kinds'])} arrays; "
               f"the model has {here['method']} with {len(here['kinds'])} arrays. Use the same "
               "method, with the same options")


def keys(index, model):
    """Returns [(key, size)] of all arrays that any rank will read. Returns [] if the snapshot or
    the model has no compression."""
    there = index.get("kept")
    if there is None or about(model) is None:
        return []
    return [(key, array.size) for kind, name, array, own in arrays(model)
            for key in _keys(there, kind, name, own, 0, 1)]


def _keys(there, kind, name, own, rank, size):
    """Returns the keys of the arrays of the old ranks `rank`, `rank + size`, and so on. If the
    array is equal on all ranks, there is one key."""
    return [key_of(kind, r, name) for r in range(rank, there["n_ranks"], size)] if own else \
        [f"kept {kind}/{name}"]


def wanted(index, model, rank, size):
    """Sets this rank's arrays to zero. Returns a list of pairs (array, key). For each pair the
    caller must add the saved array `key` to `array`. The list may have several pairs with the same
    array."""
    there = index.get("kept")
    if there is None or about(model) is None:
        return []
    found = []
    for kind, name, array, own in arrays(model):
        array[...] = 0
        found += [(array, key) for key in _keys(there, kind, name, own, rank, size)]
    return found


def resume(index, model):
    """Sets the model's step count to the step count of the snapshot, if the model and the snapshot
    have compression."""
    if (there := index.get("kept")) is not None and about(model) is not None:
        for bucket in model.reducer.buckets:
            bucket.step = there["steps"]
