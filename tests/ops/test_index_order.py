"""x[index] is PyTorch's for random indices: the order of the result's dimensions, reading, writing,
and the gradients of both."""

import random

import numpy as np
import pytest

import minidl
from tests.conftest import some
from tests.ops.indices import SHAPES, counted, indices, written

torch = pytest.importorskip("torch", reason="PyTorch's indexing")


def outcome(lib, action):
    """Returns what action(lib) returns, as arrays; None if it is an error of the index."""
    errors = (IndexError, ValueError) + ((RuntimeError, TypeError) if lib is torch else ())
    try:
        return [np.asarray(x.detach().numpy()) for x in action(lib)]
    except errors:
        return None


def assert_same(action, index, is_empty):
    """action(minidl) is action(torch), or both are errors. Where nothing is picked, PyTorch does
    not look whether the places are there, and looks at the shape of a value in another way."""
    wanted, got = outcome(torch, action), outcome(minidl, action)
    if is_empty and (wanted is None or got is None):
        return
    assert (wanted is None) == (got is None), (index, wanted, got)
    for a, b in zip(wanted or (), got or (), strict=True):
        assert a.shape == b.shape and np.array_equal(a, b), (index, a, b)


def read(x, index):
    """y = x[index] and the gradient of x."""
    def action(lib):
        leaf = lib.tensor(x, requires_grad=True)
        y = leaf[written(lib, index)]
        (y * lib.tensor(counted(y.shape, 1))).sum().backward()
        return y, lib.tensor(np.asarray(leaf.grad))
    return action


def write(x, index, value):
    """x after x[index] = value, and the gradients of x's elements before and of value."""
    def action(lib):
        plain = lib.tensor(x)
        plain[written(lib, index)] = value if isinstance(value, float) else lib.tensor(value)
        leaf = lib.tensor(x, requires_grad=True)
        v = value if isinstance(value, float) else lib.tensor(value, requires_grad=True)
        y = leaf * 1.0
        y[written(lib, index)] = v
        (y * lib.tensor(counted(x.shape, 1))).sum().backward()
        gradients = [leaf] if isinstance(value, float) else [leaf, v]
        return plain, y, *(lib.tensor(np.asarray(t.grad)) for t in gradients)
    return action


def values(rng, shape, repeats):
    """Returns a number, an array of this shape, and one that broadcasts to it. If a place is there
    twice, the arrays are all of one number: which one stays, PyTorch does not say."""
    full = counted(shape, 100)
    wide = counted([rng.choice([1, n]) for n in shape][rng.randrange(len(shape) + 1):], 100)
    wide = wide.reshape((1,) * rng.randrange(3) + wide.shape)
    return 7.0, *(np.full_like(v, 5) if repeats else v for v in (full, wide))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_reading_and_writing_are_those_of_torch(shape):
    rng, x, tried, n_right = random.Random(0), counted(shape), some(indices(shape), of=10), 0
    for index in tried:
        try:
            wanted = torch.tensor(x)[written(torch, index)]
        except (IndexError, ValueError, RuntimeError, TypeError):
            wanted = None
        is_empty = wanted is not None and wanted.numel() == 0
        assert_same(read(x, index), index, is_empty)
        shape_there, repeats = (), False
        if wanted is not None:
            n_right += 1
            shape_there = tuple(wanted.shape)
            repeats = len(np.unique(wanted)) < wanted.numel()
        for value in values(rng, shape_there, repeats):
            assert_same(write(x, index, value), (index, value), is_empty)
    assert n_right > len(tried) / 2
