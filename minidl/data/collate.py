"""From samples to a batch.   Test: tests/data/test_loader.py   Of unequal lengths: lengths.py"""

import numpy as np


def stack(samples):
    """Samples, tuples of arrays and numbers, to a tuple of arrays (batch_size, ...). Dicts become a
    dict of such arrays; dicts, tuples and lists may be nested; strings become a list of strings."""
    if not isinstance(samples[0], (tuple, dict)):
        samples = [(s,) for s in samples]
    return _stacked(samples, "")


def _stacked(values, where):
    """One field of the samples; `where`: its name and a dot, for an error."""
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
    shapes = sorted({np.shape(value) for value in values})
    if len(shapes) > 1:
        raise ValueError(f"field {where[:-1]} of the samples has shapes {shapes}; one batch needs "
                         "one shape. Pad them: collate=data.lengths.pad, or your own function.")
    return np.stack(values)
