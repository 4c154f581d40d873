"""minidl/fused/dropout_add.py: the masks of minidl/ops/dropout.py, bit for bit."""

import numpy as np
import pytest

import minidl
from minidl import ops, random
from minidl.fused import dropout_add as fused
from minidl.fused.launch import elementwise
from tests.fused.common import SIZES, backward, normal, tensors

SHAPES = [*SIZES, 7, 8, 9, (3, 5, 7)]


def generator(counter=5):
    made = random.Generator(seed=2**63 + 1, stream=9)
    made.counter = counter
    return made


@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 3, 1.0, 1e-9])
@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_has_the_bits_of_the_plain_op(shape, dtype, p):
    x, g = normal(shape, dtype, 1), normal(shape, dtype, 2)
    ours, plain = generator(), generator()
    y, (gx,) = backward(fused.dropout, [x], g, p=p, generator=ours)
    plain_y, (plain_gx,) = backward(ops.dropout.dropout, [x], g, p=p, generator=plain)
    np.testing.assert_array_equal(y, plain_y)
    np.testing.assert_array_equal(gx, plain_gx)
    assert ours.get_state() == plain.get_state()
    np.testing.assert_array_equal(y, fused.reference(x, p, generator().get_state()))


def test_a_draw_equal_to_the_threshold_is_kept():
    x = np.ones(20, np.float32)
    p = int(generator().bits(20)[13]) / 2**32
    y = fused.dropout(*tensors(x), p=p, generator=generator()).data
    np.testing.assert_array_equal(y, fused.reference(x, p, generator().get_state()))
    assert y[13] > 0


def test_a_threshold_beyond_every_draw_drops_all():
    x = normal(1000, "f4", 1)
    y, (gx,) = backward(fused.dropout, [x], x, p=1 - 2**-40, generator=generator())
    assert not y.any() and not gx.any()


@pytest.mark.parametrize("counter", [0, 2**32 - 1, 2**40])
def test_the_rungs_agree_wherever_the_counter_stands(counter):
    x = normal(1001, "f4", 1)
    state = (3, 4, counter)
    naive, eight = np.empty_like(x), np.empty_like(x)
    elementwise(
        fused.FILE, "dropout_naive", x.dtype, x.size, (naive, x, x.size, *state, 2**31, 2.0)
    )
    fused.launch("dropout", eight, (x,), 0.5, state)
    np.testing.assert_array_equal(naive, eight)
    np.testing.assert_array_equal(eight, fused.reference(x, 0.5, state))


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_dropout_add_is_dropout_and_a_sum(shape, dtype):
    x, r, g = (normal(shape, dtype, i) for i in range(3))
    y, (gx, gr) = backward(fused.dropout_add, [x, r], g, p=0.4, generator=generator())
    dropped = fused.reference(x, 0.4, generator().get_state())
    # the product may go into the sum unrounded: half a place of a number up to 6, and of the sum
    atol = {"f4": 1e-6, "f2": 6e-3}[dtype]
    np.testing.assert_allclose(y, r.astype("f8") + dropped, rtol=0, atol=atol)
    np.testing.assert_array_equal(gx, fused.reference(g, 0.4, generator().get_state()))
    np.testing.assert_array_equal(gr, g)


def test_by_default_it_draws_from_the_default_generator_and_moves_it_as_the_plain_op_does():
    (x,) = tensors(normal((3, 11), "f4", 1))
    minidl.manual_seed(3)
    a, b = fused.dropout(x, 0.3).data, fused.dropout_add(x, x, 0.3).data
    after = random.default_generator().get_state()
    minidl.manual_seed(3)
    np.testing.assert_array_equal(a, ops.dropout.dropout(x, 0.3).data)
    np.testing.assert_allclose(b, x.data + ops.dropout.dropout(x, 0.3).data, rtol=0, atol=1e-6)
    assert after == random.default_generator().get_state()
    assert not np.array_equal(a, b - x.data)  # the second call drew other numbers


def test_views_are_counted_in_their_own_order():
    x, r = normal((7, 5), "f4", 1).T, normal((5, 14), "f4", 2)[:, ::2]
    y = fused.dropout_add(*tensors(x, r), p=0.5, generator=generator()).data
    np.testing.assert_allclose(
        y, r + fused.reference(x.copy(), 0.5, generator().get_state()), rtol=0, atol=1e-6
    )


def test_nothing_is_dropped_or_saved_where_nothing_should_be():
    x, r = tensors(normal(9, "f4", 1), normal(9, "f4", 2), requires_grad=True)
    assert fused.dropout(x, 0.5, training=False) is x and fused.dropout(x, 0.0) is x
    np.testing.assert_array_equal(
        fused.dropout_add(x, r, 0.5, training=False).data, x.data + r.data
    )
    assert fused.dropout_add(x, r).grad_fn.saved == fused.dropout(x).grad_fn.saved == ()


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="dropout_add: p is .* got 1.5"):
        fused.dropout_add(minidl.zeros(2), minidl.zeros(2), 1.5)
    with pytest.raises(ValueError, match=r"dropout_add: .*\(2,\).*\(3,\)"):
        fused.dropout_add(minidl.zeros(2), minidl.zeros(3), 0.5)
