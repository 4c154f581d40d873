"""Turns dimensions and sizes into tuples. A user may write them as ints, as a tuple or as a
list."""

import numpy as np


def normalize_dims(dim, ndim, op):
    """Returns `dim` as a tuple of axes in [0, ndim). None means all axes. Raises IndexError if a
    dimension is out of range, and ValueError if a dimension is repeated. For a 0-d
    tensor, dim may be 0 or -1, as in PyTorch. The result is then ()."""
    if dim is None:
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, (int, np.integer)) else tuple(dim)
    limit = max(ndim, 1)
    for d in dims:
        if not -limit <= d < limit:
            raise IndexError(f"{op}: dim {d} is out of range for a tensor of {ndim} dimensions, "
                             f"want {-limit} to {limit - 1}")
    axes = tuple(int(d) % ndim for d in dims) if ndim else ()
    if len(set(axes)) < len(axes):
        raise ValueError(f"{op}: wants different dimensions; got dim {dim}, which names a "
                         "dimension twice")
    return axes


def sizes(args):
    """Returns the sizes as a tuple: (2, 3) for x.reshape(2, 3), and also for x.reshape((2, 3))."""
    if len(args) == 1 and not hasattr(args[0], "__index__"):
        args = args[0]
    return tuple(int(n) for n in args)
