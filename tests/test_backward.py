"""Tests that backward computes every gradient completely, once, and in memory of its own."""

import gc
import weakref

import numpy as np
import pytest

import minidl
from minidl import Function, Tensor


def leaf(*shape, seed=0, dtype=np.float32):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    return Tensor(values, requires_grad=True)


def test_a_chain_of_50_000_ops():
    # a recursion, in backward or when the graph is freed, fails at a depth of about 1,000
    x = leaf(3)
    y = x
    for _ in range(50_000):
        y = y + 1.0
    y.sum().backward()
    assert np.array_equal(x.grad, np.ones(3))
    y = x
    for _ in range(50_000):
        y = y * 1.0
    del y  # frees a graph without a backward


def test_gradients_accumulate_over_backwards():
    x = leaf(3)
    for _ in range(3):
        (2 * x).sum().backward()
    assert np.array_equal(x.grad, np.full(3, 6, np.float32))


def test_a_node_used_twice_gets_both_gradients_before_its_turn():
    # backward reaches the shared node by the short path x*x -> sum long before the long path
    x = leaf(4, dtype=np.float64)
    shared = x * x
    long = shared
    for _ in range(10):
        long = long * 1.5
    (shared.sum() + long.sum()).backward()
    # the rounding error of ten products and two sums in float64
    np.testing.assert_allclose(x.grad, 2 * x.array * (1 + 1.5**10), rtol=1e-14)


def test_a_node_waits_for_all_consumers_whichever_of_their_inputs_is_deep():
    for shallow_last in (False, True):
        x = leaf(4)
        a = x * 2.0
        deep = ((a * 3.0) * 5.0) * 7.0
        both = deep + a if shallow_last else a + deep
        (both.sum() + (deep * 11.0).sum()).backward()
        assert np.array_equal(x.grad, np.full(4, 2 * (105 + 1 + 11 * 105)))


def test_a_leaf_used_twice_by_one_op():
    x = leaf(3)
    (x * x + x + x).sum().backward()
    np.testing.assert_allclose(x.grad, 2 * x.array + 2, rtol=3e-7)  # three additions in float32


def test_saved_arrays_are_freed_as_the_walk_passes():
    x = leaf(1000)
    y = x.exp()
    kept = weakref.ref(y.array)
    z = y * y
    del y
    loss = z.sum()
    del z
    assert kept() is not None
    loss.backward()
    assert kept() is None


def test_the_walk_lets_go_of_the_nodes_it_has_passed():
    y = leaf(3).exp()
    node = weakref.ref(y.grad_fn)
    loss = y.sum()
    del y
    loss.backward()
    assert node() is None and loss.grad_fn is not None


def test_without_backward_the_graph_dies_with_its_result():
    y = leaf(10).exp()
    kept = weakref.ref(y.array)
    z = (y * 2).sum()
    del y, z
    gc.collect()
    assert kept() is None


def test_a_second_backward_is_an_error_that_names_the_remedy():
    loss = leaf(3).exp().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time.*retain_graph=True"):
        loss.backward()


def test_retain_graph_allows_a_second_backward():
    x = leaf(3)
    loss = x.exp().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert np.array_equal(x.grad, 2 * np.exp(x.array))  # doubling is exact


@pytest.mark.parametrize("change", [
    lambda w: w.copy_(np.zeros(3, np.float32)),
    lambda w: w.zero_(),
    lambda w: w.__isub__(1.0),
    lambda w: w.__imul__(2.0),
    lambda w: w.__setitem__(0, 5.0),
    lambda w: setattr(w, "data", w.array - 0.1),
], ids=["copy_", "zero_", "-=", "*=", "[]=", "data ="])
def test_in_place_change_of_a_saved_leaf_is_detected(change):
    w = leaf(3)
    loss = (w * w).sum()
    with minidl.no_grad():
        change(w)
    with pytest.raises(RuntimeError, match=r"leaf of shape \(3,\) that Mul saved was changed"):
        loss.backward()


def test_augmented_assignment_to_data_is_detected():
    w = leaf(3)
    loss = (w * w).sum()
    w.data -= 0.1 * np.ones(3, np.float32)
    with pytest.raises(RuntimeError, match="version was 0 in forward, and is 1 in backward"):
        loss.backward()


def test_in_place_change_of_a_saved_constant_is_detected():
    # x needs no gradient, but w's gradient is computed from x
    w, x = leaf(3), minidl.ones(3)
    loss = (w * x).sum()
    x += 1
    with pytest.raises(RuntimeError, match="that Mul saved was changed"):
        loss.backward()


def test_in_place_change_behind_a_saved_view_is_detected():
    x, w = minidl.ones(2, 3, 4), leaf(5, 4)
    loss = minidl.ops.linear.linear(x, w).sum()  # saves x, reshaped to a matrix
    x += 1
    with pytest.raises(RuntimeError, match="that Linear saved was changed"):
        loss.backward()


def test_in_place_change_of_a_leaf_that_nobody_saved_is_harmless():
    w = leaf(3)
    loss = (w * 3.0).sum()
    with minidl.no_grad():
        w -= 1
    loss.backward()
    assert np.array_equal(w.grad, np.full(3, 3, np.float32))


def test_on_grad_ready_fires_once_per_leaf_as_soon_as_it_is_complete():
    fired = []
    ws = [leaf(3, seed=i) for i in range(4)]
    hooked = {id(w): i for i, w in enumerate(ws)}
    for w in ws:
        w.on_grad_ready(lambda w: fired.append((hooked[id(w)], w.grad.array.copy())))
    x = minidl.ones(3)
    for w in ws:
        x = (x * w).tanh()
    (x * ws[0]).sum().backward()  # ws[0] is used first and last: its gradient is ready last
    assert [i for i, _ in fired] == [3, 2, 1, 0]
    for i, gradient in fired:
        assert np.array_equal(gradient, ws[i].grad)


def test_on_grad_ready_fires_in_every_backward_and_not_after_removal():
    fired = []
    x = leaf(2)
    remove = x.on_grad_ready(lambda w: fired.append("a"))
    x.on_grad_ready(lambda w: fired.append("b"))
    x.sum().backward()
    x.sum().backward()
    assert fired == ["a", "b", "a", "b"]
    remove()
    x.sum().backward()
    assert fired[4:] == ["b"]


def test_on_grad_ready_does_not_fire_for_a_leaf_that_backward_does_not_reach():
    fired = []
    x, unused = leaf(2), leaf(2)
    unused.on_grad_ready(fired.append)
    _ = unused * 2
    x.sum().backward()
    assert fired == [] and unused.grad is None


def test_on_grad_ready_wants_a_leaf():
    with pytest.raises(RuntimeError, match="leaves that require a gradient"):
        (leaf(2) * 2).on_grad_ready(print)


def test_leaves_that_receive_one_array_do_not_share_it():
    a, b = leaf(3), leaf(3)
    (a + b).sum().backward()
    assert not np.shares_memory(a.grad, b.grad)
    a.grad += 1
    assert np.array_equal(b.grad, np.ones(3))


class Same(Function):
    """Computes a + b. Its backward returns one new array for both inputs."""

    def forward(self, a, b):
        return a + b

    def backward(self, gy):
        g = gy * 1
        return g, g


def test_a_hook_that_writes_into_a_gradient_does_not_disturb_the_walk():
    # the node x * 3 gets the same array as the leaf: a change in place must not reach this node
    w, x = leaf(3), leaf(3)
    w.on_grad_ready(lambda w: w.grad.array.fill(100))
    Same.apply(w, x * 3.0).sum().backward()
    assert np.array_equal(x.grad, np.full(3, 3, np.float32))


@pytest.mark.parametrize("op", [
    lambda x: x.reshape(-1), lambda x: x.T, lambda x: x[:, 0], lambda x: x.exp(),
    lambda x: x.unsqueeze(0).expand(2, 2, 3), lambda x: minidl.cat([x, x]), lambda x: x * 1.0,
])
def test_a_leaf_owns_a_writable_gradient(op):
    x = leaf(2, 3)
    y = op(x)
    gy = np.ones(y.shape, np.float32)
    y.backward(gy)
    assert x.grad.array.flags.owndata and x.grad.array.flags.writeable
    assert not np.shares_memory(x.grad, gy)
    x.grad += 1
    assert (gy == 1).all()


def test_a_gradient_that_is_a_view_of_a_flat_buffer_stays_that_view():
    flat = np.zeros(6, np.float32)
    x, y = leaf(2), leaf(4)
    x.grad, y.grad = flat[:2], flat[2:]
    (x.sum() + (2 * y).sum()).backward()
    assert np.array_equal(flat, [1, 1, 2, 2, 2, 2])
    assert x.grad.array.base is flat and y.grad.array.base is flat


def test_no_grad_builds_no_graph_and_nests():
    x = leaf(2)
    with minidl.no_grad():
        assert not (x * 2).requires_grad and not minidl.is_grad_enabled()
        with minidl.enable_grad():
            assert (x * 2).requires_grad
        assert not minidl.is_grad_enabled()
    assert (x * 2).requires_grad

    @minidl.no_grad()
    def evaluate():
        return x * 2

    assert not evaluate().requires_grad and not evaluate().requires_grad
    with pytest.raises(RuntimeError, match="outside of no_grad"):
        evaluate().backward(np.ones(2, np.float32))


def test_no_grad_ends_with_an_exception():
    with pytest.raises(ZeroDivisionError), minidl.no_grad():
        raise ZeroDivisionError
    assert minidl.is_grad_enabled()


def test_grad_mode_belongs_to_the_context_so_greenlets_do_not_mix_it():
    greenlet = pytest.importorskip("greenlet")
    seen = []

    def rank(name):
        with minidl.no_grad():
            switch()
            seen.append((name, minidl.is_grad_enabled()))

    def switch():
        main.switch()

    def bystander():
        switch()
        seen.append(("bystander", minidl.is_grad_enabled()))

    main = greenlet.getcurrent()
    others = [greenlet.greenlet(lambda: rank("a")), greenlet.greenlet(bystander)]
    for g in others * 2:
        g.switch()
        assert minidl.is_grad_enabled()
    assert seen == [("a", False), ("bystander", True)]


def test_retain_grad_keeps_the_gradient_of_a_result():
    x = leaf(3)
    y = x * 2.0
    y.retain_grad()
    (y * y).sum().backward()
    assert np.array_equal(y.grad, 2 * y.array) and np.array_equal(x.grad, 2 * y.grad)
    y.grad += 1  # y.grad has its own memory, although backward used the gradient again
    np.testing.assert_allclose(x.grad, 4 * y.array, rtol=1e-6)


def test_retained_gradients_are_nobody_else_s():
    x = leaf(3)
    y = x.exp()
    z = y + 1.0  # y gets the gradient of z, and in backward both are one array
    for t in (y, z):
        t.retain_grad()
    z.backward(np.ones(3, np.float32))
    z.grad += 5
    assert np.array_equal(y.grad, np.ones(3))
    assert np.array_equal(x.grad, y.array)


def test_one_output_of_several_unused():
    x = leaf(6)
    a, b, c = x.split(2)
    (3 * b).sum().backward()
    assert np.array_equal(x.grad, [0, 0, 3, 3, 0, 0])


def test_a_result_that_is_no_float_has_no_way_back():
    values, indices = leaf(2, 3).max(1)
    assert values.requires_grad and values.grad_fn is not None
    assert not indices.requires_grad and indices.is_leaf


def test_gradients_have_the_dtype_of_their_leaf():
    half, single, double = (leaf(2, dtype=t) for t in ("f2", "f4", "f8"))
    ((half * single) * double).sum().backward()
    assert [x.grad.dtype for x in (half, single, double)] == ["f2", "f4", "f8"]


def test_broadcast_dimensions_are_summed():
    a, b, c, d = leaf(2, 1, 3), leaf(4, 1), leaf(), leaf(1, 1, 1, 1)
    (a * b * c * d).sum().backward()
    for x in (a, b, c, d):
        assert x.grad.shape == x.shape and type(x.grad.array) is np.ndarray
    full = np.broadcast_to(a.array * b.array, (2, 4, 3))
    # a sum of 24 products in float32, in another order
    np.testing.assert_allclose(c.grad, full.sum() * d.array.item(), rtol=1e-5)


def test_fp16_broadcast_sums_in_fp32():
    # A column is summed row by row. In fp16 a sum of ones stops at 2048, where 1 is half the
    # distance to the next number.
    b = Tensor(np.zeros(3, np.float16), requires_grad=True)
    (minidl.zeros(4096, 3, dtype=np.float16) + b).backward(np.ones((4096, 3), np.float16))
    assert b.grad.array.tolist() == [4096] * 3


def test_a_backward_of_the_wrong_shape_or_number_is_refused():
    class Wrong(Function):
        def forward(self, x, gradients):
            self.gradients = gradients
            return x * 1

        def backward(self, gy):
            return self.gradients

    for gradients, words in [(np.ones(5), r"shape \(5,\) for an input of shape \(3,\)"),
                             ((np.ones(3), None), "2 gradients for 1 inputs")]:
        with pytest.raises(RuntimeError, match=words):
            Wrong.apply(leaf(3), gradients=gradients).sum().backward()


def test_backward_wants_a_gradient_for_more_than_one_element():
    with pytest.raises(RuntimeError, match="single element"):
        (leaf(3) * 2).backward()
    with pytest.raises(ValueError, match=r"shape, \(3,\); got .*shape \(2,\)"):
        (leaf(3) * 2).backward(np.ones(2))
    x = leaf(1, 1)
    (x * 2).backward()
    assert x.grad.item() == 2


def test_backward_of_a_leaf_is_its_gradient():
    x = leaf(3)
    gradient = np.arange(3, dtype=np.float32)
    x.backward(gradient)
    assert np.array_equal(x.grad, gradient) and not np.shares_memory(x.grad, gradient)


def test_grad_returns_gradients_and_touches_nothing():
    fired = []
    x, y, unused = leaf(3), leaf(3), leaf(3)
    x.on_grad_ready(fired.append)
    gx, gy, none = minidl.grad((x * y * y).sum(), [x, y, unused])
    # float32: gx is one rounded product; gy is a product and a sum of two equal numbers
    np.testing.assert_allclose(gx, y.array**2, rtol=2e-7)
    np.testing.assert_allclose(gy, 2 * x.array * y.array, rtol=2e-7)
    assert none is None and x.grad is None and y.grad is None and fired == []
    with pytest.raises(ValueError, match="leaves"):
        minidl.grad((x * 2).sum(), [x * 2])


def test_grad_of_several_outputs_with_their_gradients():
    x = leaf(3)
    (gx,) = minidl.grad([x * 2, x * 3], x, [np.ones(3, np.float32), np.full(3, 10, np.float32)])
    assert np.array_equal(gx, np.full(3, 32, np.float32))


def test_grad_of_what_is_no_leaf_says_what_it_is():
    x = minidl.ones(2, requires_grad=True)
    y = x * 2
    with pytest.raises(ValueError, match=r"leaves .* got a result of <Mul>. .* retain_grad\(\)"):
        minidl.grad(y.sum(), y)
    with pytest.raises(ValueError, match="got a leaf with requires_grad=False"):
        minidl.grad(y.sum(), minidl.ones(2))
