"""Random indices: what may stand in x[...], for the tests of indexing.

    for index in indices((3, 4)):
        torch.tensor(x)[written(torch, index)]
"""

import random

import numpy as np

SHAPES = [(), (4,), (1,), (0,), (3, 4), (1, 5), (4, 4), (0, 3), (3, 0), (3, 4, 5), (2, 2, 2),
          (4, 1, 3), (2, 3, 4, 2), (3, 3, 3, 3)]
EACH = 260  # indices for each shape: 3,640 in all


def indices(shape):
    """Returns EACH indices for this shape, always the same. Some of them are errors."""
    rng = random.Random(str(shape))
    return [random_index(rng, shape) for _ in range(EACH)]


class AsTensor:
    """An array of an index that each library is given as its own tensor."""

    def __init__(self, values):
        self.values = values

    def __repr__(self):
        return f"tensor({self.values.tolist()})"


def random_index(rng, shape):
    """Returns a tuple of numbers, slices, None, Ellipsis, bools, and lists, arrays, tensors."""
    index, dim = [], 0
    n_arrays = rng.choice([0, 0, 1, 1, 1, 2, 2, 3])
    common = rng.choice([(2,), (3,), (1,), (2, 2), (), (0,)])
    kinds = ["array"] * n_arrays + rng.choices(["int", "slice", "all"], k=rng.randrange(3))
    if rng.random() < 0.95:  # no more than there are dimensions
        kinds = kinds[:len(shape)]
    kinds += rng.choices(["None", "None", "bool"], k=rng.choice([0, 0, 1, 1, 2]))
    rng.shuffle(kinds)
    ellipsis = rng.randrange(len(kinds) + 1) if rng.random() < 0.4 else None
    for k, kind in enumerate(kinds):
        if k == ellipsis:
            rest = sum(kind not in ("None", "bool") for kind in kinds[k:])
            index.append(...)
            dim = max(len(shape) - rest, dim)
        size = shape[dim] if dim < len(shape) else 2
        if kind == "None":
            index.append(None)
            continue
        if kind == "bool":
            index.append(rng.choice([True, True, False]))
            continue
        if kind == "int":
            index.append(rng.randrange(-size, size) if size else 0)
        elif kind == "all":
            index.append(slice(None))
        elif kind == "slice":
            ends = [rng.choice([None, *range(-size - 1, size + 2)]) for _ in range(2)]
            index.append(slice(*ends, rng.choice([None, 1, 2, 3])))
        else:
            n_dims = rng.choice([0, 0, 0, 1, 1, 2])
            part = mask(rng, shape[dim:dim + n_dims]) if n_dims and dim < len(shape) else places(
                rng, size, common)
            # PyTorch takes a list or an array for one dimension when it looks what ... stands for
            index.append(AsTensor(part) if part.dtype == bool and part.ndim > 1 else
                         rng.choice([part, AsTensor(part), part.tolist()]))
            dim += part.ndim - 1 if part.dtype == bool else 0
        dim += 1
    if ellipsis == len(kinds):
        index.append(...)
    if len(index) == 1 and rng.random() < 0.5 and not (  # of a list of lists PyTorch warns there
            isinstance(index[0], list) and any(isinstance(row, list) for row in index[0])):
        return index[0]
    return tuple(index)


def places(rng, size, common):
    """Integers of a shape that broadcasts with `common`; few are outside."""
    shape = rng.choice([common, common, common[-1:], (1,) * len(common)])
    low, high = (-size, size) if size else (0, 1)
    values = np.array([rng.randrange(low, high) for _ in range(int(np.prod(shape)))], np.int64)
    if values.size and rng.random() < 0.03:
        values[0] = size
    return values.reshape(shape).astype(rng.choice([np.int64, np.int32]))


def mask(rng, shape):
    """Bools of this shape; few are of a wrong one."""
    if shape and rng.random() < 0.03:
        shape = (shape[0] + 1, *shape[1:])
    return np.array([rng.random() < 0.5 for _ in range(int(np.prod(shape)))], bool).reshape(shape)


def written(lib, index):
    """Returns the index as a user of `lib`, minidl or torch, writes it."""
    if isinstance(index, tuple):
        return tuple(written(lib, part) for part in index)
    return lib.tensor(index.values) if isinstance(index, AsTensor) else index


def counted(shape, start=0):
    """Returns whole numbers, all different: sums of some of them are exact, in any order."""
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)
