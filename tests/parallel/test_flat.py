"""Flat buffers hold every element once, in order, whatever the shapes."""

import numpy as np
import pytest

from minidl import nn
from minidl.parallel import flat

SHAPES = [(2, 3), (), (0, 4), (5,), (1, 1, 2)]


def test_flatten_and_unflatten_are_inverse():
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(s)) for s in SHAPES]
    buffer = flat.flatten(arrays)
    assert buffer.shape == (14,)
    copies = [np.zeros_like(a) for a in arrays]
    flat.unflatten(buffer, copies)
    for a, b in zip(arrays, copies):
        np.testing.assert_array_equal(a, b)


def test_views_share_memory_and_cover_the_buffer_once():
    buffer = np.zeros(14)
    for i, view in enumerate(flat.views(buffer, SHAPES)):
        view += i + 1
    assert buffer.tolist() == [1] * 6 + [2] + [4] * 5 + [5] * 2


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5, 8, 20])
def test_partition_covers_every_element_and_differs_by_one_at_most(n_ranks):
    bounds = flat.partition_bounds(14, n_ranks)
    sizes = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == 14 and len(bounds) == n_ranks + 1
    assert sizes.max() - sizes.min() <= 1 and (sizes >= 0).all()


def test_a_buffer_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="3 elements for arrays of 4 in all"):
        flat.unflatten(np.zeros(3), [np.zeros(4)])


def test_dtypes_are_kept_apart_in_order():
    params = [nn.Parameter(np.zeros(1, t)) for t in ("f4", "f2", "f4")]
    groups = flat.by_dtype(params)
    assert list(groups) == [np.float32, np.float16]
    assert groups[np.dtype("f4")] == [params[0], params[2]]
