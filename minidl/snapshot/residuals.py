"""What gradient compression keeps from step to step (parallel/data/compress.py), in a snapshot.

    written by 4 ranks    e0 e1 e2 e3       each rank's residual, momentum, ...
    loaded on 2 ranks     e0 + e2           rank 0: those of the old ranks 0, 2, 4, ...
                          e1 + e3           rank 1
    loaded on 6 ranks     e0 e1 e2 e3 0 0

What a rank keeps is a share of the mean gradient, so the sum over ranks is what the parameters are
still owed, and that sum is kept, whatever the number of ranks; on as many ranks as before each gets
its own to the bit. What all ranks have alike (PowerSGD's Q, 1-bit Adam's moments) is written once.

Test: tests/snapshot/test_residuals.py   Used by: regions.py, fit.py, snapshot.py
"""

from minidl.parallel.data.compress import Compressed


def key_of(kind, rank, name):
    return f"kept {kind} of rank {rank}/{name}"


def arrays(model):
    """(kind, parameter's name, array, whether it is this rank's own)."""
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
    """What the index says of it; None where nothing is kept."""
    if not isinstance(model, Compressed):
        return None
    kinds = sorted({f"{kind}/{name}" for kind, name, _, _ in arrays(model)})
    return {"method": type(model.method).__name__, "kinds": kinds, "n_ranks": model.t.size,
            "steps": model.reducer.buckets[0].step}


def misfits(index, model, optimizer):
    """Sentences about what does not fit."""
    there, here = index.get("kept"), about(model)
    if there is None:  # a run that was not compressed: nothing is owed
        return
    if here is None and optimizer is not None:
        yield (f"the snapshot holds what {there['method']} still owes to the weights, and this "
               "model would forget it: wrap it in parallel.Compressed, as it was. To use the "
               "weights alone, load without an optimizer")
    elif here is not None and (here["method"], here["kinds"]) != (there["method"], there["kinds"]):
        yield (f"the snapshot holds what {there['method']} keeps of {len(there['kinds'])} arrays; "
               f"the model's {here['method']} wants {len(here['kinds'])}: the same method with "
               "options that keep the same arrays is needed")


def keys(index, model):
    """[(key, size)] of all that any rank will want; none if nothing is kept here or there."""
    there = index.get("kept")
    if there is None or about(model) is None:
        return []
    return [(key, array.size) for kind, name, array, own in arrays(model)
            for key in _keys(there, kind, name, own, 0, 1)]


def _keys(there, kind, name, own, rank, size):
    """The keys of what the old ranks rank, rank + size, ... kept."""
    return [key_of(kind, r, name) for r in range(rank, there["n_ranks"], size)] if own else \
        [f"kept {kind}/{name}"]


def wanted(index, model, rank, size):
    """[(array, key)]: what is to be added up in this rank's arrays, which become zeros here."""
    there = index.get("kept")
    if there is None or about(model) is None:
        return []
    found = []
    for kind, name, array, own in arrays(model):
        array[...] = 0
        found += [(array, key) for key in _keys(there, kind, name, own, rank, size)]
    return found


def resume(index, model):
    """Go on counting steps, where the snapshot and the model both do."""
    if (there := index.get("kept")) is not None and about(model) is not None:
        for bucket in model.reducer.buckets:
            bucket.step = there["steps"]
