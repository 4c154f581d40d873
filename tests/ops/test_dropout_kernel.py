"""minidl/ops/dropout.py: the masks of minidl/ops/dropout.py, bit for bit."""

import math

import numpy as np
import pytest

import minidl
from minidl import random
from minidl.cuda.launch import elementwise
from minidl.nn import functional as F
from minidl.ops import dropout
from tests.kernel_arrays import SIZES, backward, normal, tensors


def reference(x, p, state):
    """x with dropout by the draws of a generator in `state`, (seed, stream, counter)."""
    generator = random.Generator()
    generator.set_state(state)
    keep = generator.bits(x.size).astype(np.uint64) >= math.ceil(p * 2**32)
    return x * keep.reshape(x.shape) * x.dtype.type(1 / (1 - p) if p < 1 else 0)


SHAPES = [*SIZES, 7, 8, 9, (3, 5, 7)]


def generator(counter=5):
    made = random.Generator(seed=2**63 + 1, stream=9)
    made.counter = counter
    return made


@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 3, 1.0, 1e-9])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_op_has_the_bits_of_the_op_without_kernels(shape, dtype, p):
    x, g = normal(shape, dtype, 1), normal(shape, dtype, 2)
    ours, plain = generator(), generator()
    y, (gx,) = backward(F.dropout, [x], g, p=p, generator=ours)
    with minidl.use_fused(False):
        plain_y, (plain_gx,) = backward(F.dropout, [x], g, p=p, generator=plain)
    np.testing.assert_array_equal(y, plain_y)
    np.testing.assert_array_equal(gx, plain_gx)
    assert ours.get_state() == plain.get_state()
    np.testing.assert_array_equal(y, reference(x, p, generator().get_state()))
    np.testing.assert_array_equal(gx, reference(g, p, generator().get_state()))


def test_a_draw_equal_to_the_threshold_is_kept():
    x = np.ones(20, np.float32)
    p = int(generator().bits(20)[13]) / 2**32
    y = dropout.by_kernel(x, p, generator().get_state())
    np.testing.assert_array_equal(y, reference(x, p, generator().get_state()))
    assert y[13] > 0


def test_a_threshold_beyond_every_draw_drops_all():
    x = normal(1000, "f4", 1)
    y, (gx,) = backward(F.dropout, [x], x, p=1 - 2**-40, generator=generator())
    assert not y.any() and not gx.any()


@pytest.mark.parametrize("counter", [0, 2**32 - 1, 2**40])
def test_the_rungs_agree_wherever_the_counter_stands(counter):
    x = normal(1001, "f4", 1)
    state = (3, 4, counter)
    naive = np.empty_like(x)
    elementwise(
        dropout.FILE, "dropout_naive", x.dtype, x.size, (naive, x, x.size, *state, 2**31, 2.0)
    )
    eight = dropout.by_kernel(x, 0.5, state)
    np.testing.assert_array_equal(naive, eight)
    np.testing.assert_array_equal(eight, reference(x, 0.5, state))


def test_it_draws_from_the_default_generator_and_moves_it_as_the_op_without_kernels_does():
    (x,) = tensors(normal((3, 11), "f4", 1))
    results = []
    for kernels in (True, False):
        minidl.manual_seed(3)
        with minidl.use_fused(kernels):
            first, second = F.dropout(x, 0.3).array, F.dropout(x, 0.3).array
        assert not np.array_equal(first, second)  # the second call drew other numbers
        results.append((first, second, random.default_generator().get_state()))
    for ours, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, plain)


def test_views_are_counted_in_their_own_order():
    x, state = normal((7, 10), "f4", 1).T[::2], generator().get_state()
    np.testing.assert_array_equal(dropout.by_kernel(x, 0.5, state),
                                  reference(x.copy(), 0.5, state))
    y, (gx,) = backward(F.dropout, [x], x, p=0.5, generator=generator())
    np.testing.assert_array_equal(y, reference(x.copy(), 0.5, state))
    np.testing.assert_array_equal(gx, y)


def test_nothing_is_dropped_or_saved_where_nothing_should_be():
    (x,) = tensors(normal(9, "f4", 1), requires_grad=True)
    assert F.dropout(x, 0.5, training=False) is x and F.dropout(x, 0.0) is x
    assert F.dropout(x).grad_fn.saved == ()


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="dropout: p, .* got 1.5"):
        F.dropout(minidl.zeros(2), 1.5)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("n", [1, 7, 8, 4099])
def test_a_gpu_takes_packs_of_16_bytes(n, dtype):
    """As its threads read: whole, with a tail, and from an address that is no multiple of 16."""
    memory = normal(n + 1, dtype, 1)
    for x in (memory[:n].copy(), memory[1:]):
        out, state = np.empty_like(x), generator().get_state()
        threshold, scale = dropout.limits(0.5)
        args = out, x, n, -(-n // 8), *state, threshold, scale
        elementwise(dropout.FILE, "dropout", x.dtype, -(-n // 8), args)
        np.testing.assert_array_equal(out, reference(x, 0.5, state))
