"""Dropout: which elements, how many, and the same ones in backward and after a replay."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops.dropout import keep_mask


def ones(*shape, dtype=np.float64):
    return minidl.Tensor(np.ones(shape, dtype), requires_grad=True)


def test_element_i_stays_if_draw_i_of_the_generator_reaches_p():
    generator, same = minidl.Generator(5, stream=2), minidl.Generator(5, stream=2)
    y = F.dropout(ones(7, 3), 0.3, generator=generator).numpy()
    stays = same.bits(21).reshape(7, 3) >= 0.3 * 2**32
    np.testing.assert_array_equal(y, np.where(stays, 1 / 0.7, 0))
    assert generator.get_state() == same.get_state()


def test_share_of_zeros_and_mean():
    y = F.dropout(ones(100_000), 0.2, generator=minidl.Generator(0)).numpy()
    # a binomial share has standard deviation sqrt(0.2 * 0.8 / 1e5) = 0.0013: 5 of them
    assert abs((y == 0).mean() - 0.2) < 0.0065
    assert abs(y.mean() - 1) < 0.0065 / 0.8


def test_gradient_uses_the_mask_of_the_forward():
    x = ones(50, 7)
    y = F.dropout(x, 0.5, generator=minidl.Generator(1))
    y.backward(np.full((50, 7), 3.0))
    np.testing.assert_array_equal(x.grad, 3 * y.numpy())


def test_default_generator_moves_and_replays_from_its_state():
    generator = minidl.manual_seed(11)
    state = generator.get_state()
    first, second = F.dropout(ones(64)).numpy(), F.dropout(ones(64)).numpy()
    assert (first != second).any()
    generator.set_state(state)
    np.testing.assert_array_equal(F.dropout(ones(64)).numpy(), first)


def test_nothing_is_saved():
    y = F.dropout(ones(1000), 0.1)
    assert minidl.memory.saved_bytes(y) == 0


@pytest.mark.parametrize("start", [0, 1, 7, 8, 13])
def test_a_part_of_the_mask_is_that_part_of_the_whole(start):
    whole = keep_mask(np, (3, 0, 5), 0, 40, 0.4)
    np.testing.assert_array_equal(keep_mask(np, (3, 0, 5), start, 20, 0.4), whole[start:start + 20])


def test_ends_of_the_range():
    x = ones(9)
    assert F.dropout(x, 0.0) is x and F.dropout(x, 0.7, training=False) is x
    y = F.dropout(x, 1.0)
    y.backward(np.ones(9))
    assert not y.numpy().any() and not x.grad.array.any()
    for p in (-0.1, 1.1):
        with pytest.raises(ValueError, match="dropout: p, the probability"):
            F.dropout(x, p)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="^dropout: wants floating numbers, got int64"):
        F.dropout(minidl.tensor([1, 2]))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_keeps_the_dtype(dtype):
    assert F.dropout(ones(5, dtype=dtype), 0.5).dtype == np.dtype(dtype)
