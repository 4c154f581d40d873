"""Makes a batch of Tensors from a list of samples.

    [(array, 3), (array, 5)]                    (Tensor (2, ...), Tensor (2,) int64)
    [{"x": 1.5, "name": "a"}, {...}]            {"x": Tensor (2,) float64, "name": ["a", ...]}
    [array, array, array]                       Tensor (3, ...)

Test: tests/data/test_loader.py   Samples of unequal lengths: lengths.py
"""

import numpy as np

from minidl import backend
from minidl.tensor import Tensor


def default_collate(batch):
    """Returns one batch, made from a list of samples. An array, a Tensor or a number in each sample
    becomes a Tensor (batch_size, ...) of the same dtype. Python's numbers become int64, float64 or
    bool. Tuples, named tuples, lists and dicts keep their types, and may be nested. Strings become
    a list of strings. Raises ValueError if the samples differ in keys, lengths or shapes."""
    return _stacked(batch, "")


def _stacked(values, where):
    """Returns the batch of one field. values: the field's value in each sample. where: the field's
    name and a dot, for an error message."""
    first = values[0]
    if isinstance(first, dict):
        if any(v.keys() != first.keys() for v in values):
            raise ValueError("the samples have different keys: "
                             f"{sorted({str(sorted(map(str, v))) for v in values})}")
        return {k: _stacked([v[k] for v in values], f"{where}{k}.") for k in first}
    if isinstance(first, (tuple, list)):
        parts = [_stacked(part, f"{where}{k}.")
                 for k, part in enumerate(zip(*values, strict=True))]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, (str, bytes)):
        return list(values)
    values = [backend.plain_array(value) for value in values]
    shapes = sorted({np.shape(value) for value in values})
    if len(shapes) > 1:
        name = f"field {where[:-1]} of the samples has" if where else "the samples have"
        raise ValueError(f"{name} shapes {shapes}, but a batch must have only one shape. Pad the "
                         "samples: pass collate=data.lengths.pad, or your own function.")
    return Tensor(backend.xp_of(values).stack(values))


def map_arrays(fn, batch):
    """Returns a copy of the batch, with Tensor(fn(x.array)) in place of each Tensor x."""
    if isinstance(batch, Tensor):
        return Tensor(fn(batch.array))
    if isinstance(batch, dict):
        return {k: map_arrays(fn, v) for k, v in batch.items()}
    if isinstance(batch, (tuple, list)):
        parts = [map_arrays(fn, v) for v in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch
