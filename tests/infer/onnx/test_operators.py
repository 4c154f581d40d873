"""Operators whose rules differ from minidl's ops', each by its formula. `make onnx` runs all of
ONNX's own 1,884 tests, and test_every_operator.py."""

import numpy as np
import pytest

from minidl import infer
from tests.infer.models import array
from tests.infer.onnx.files import branch, close, file_of, one, onnx


def test_whole_division_rounds_towards_zero():
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    close([one("Div", a, b)], [np.array([3, -3, -3, 3], np.int32)])
    close([one("Mod", a, b)], [np.array([1, 1, -1, -1], np.int32)])
    close([one("Mod", a, b, fmod=1)], [np.array([1, -1, 1, -1], np.int32)])


def test_softmax_before_version_13_is_over_all_from_its_axis_on():
    x = array(2, 3, 4)
    e = np.exp(x - x.max((1, 2), keepdims=True))
    close([one("Softmax", x, axis=1, opset=11)], [e / e.sum((1, 2), keepdims=True)])


def test_slices_backwards_beyond_the_ends():
    x = np.arange(5.0, dtype=np.float32)
    for start, end, step in ((-1, -10, -1), (3, -9, -2), (-100, 100, 2), (4, 0, -1), (2, 2, 1)):
        args = [np.array([v]) for v in (start, end, [0][0], step)]
        want = x[slice(*slice(start, end if step > 0 or end > -6 else None, step).indices(5))] \
            if end > -6 else x[start::step]
        close([one("Slice", x, *args, known=[1, 2, 3, 4])], [want])


def test_padding_that_differs_by_side():
    x, w = array(1, 2, 5, 5), array(3, 2, 3, 3)
    for how, pads in (("SAME_UPPER", (0, 0, 1, 1)), ("SAME_LOWER", (1, 1, 0, 0))):
        x4 = x[:, :, :4, :4]
        close([one("Conv", x4, w, auto_pad=how, strides=[2, 2])],
              [one("Conv", x4, w, pads=list(pads), strides=[2, 2])])
    ones = one("AveragePool", np.ones((1, 1, 4, 4), np.float32), kernel_shape=[3, 3],
               pads=[0, 0, 1, 1], strides=[2, 2])
    close([ones], [np.ones((1, 1, 2, 2), np.float32)])  # the padding does not count


def test_resize_of_a_ramp():
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    scales = np.array([1, 1, 1, 2], np.float32)

    def resized(**how):
        return one("Resize", x, None, scales, known=[2], **how).ravel()

    np.testing.assert_allclose(resized(mode="linear"), [0, .25, .75, 1.25, 1.75, 2.25, 2.75, 3])
    np.testing.assert_allclose(resized(mode="linear", coordinate_transformation_mode=(
        "align_corners")), np.arange(8) * 3 / 7, rtol=1e-6)
    np.testing.assert_array_equal(resized(coordinate_transformation_mode="asymmetric",
                                          nearest_mode="floor"), [0, 0, 1, 1, 2, 2, 3, 3])


def test_attention_of_shared_heads_and_rows_that_may_look_nowhere():
    q, k, v = array(1, 4, 3, 2), array(1, 2, 5, 2, seed=1), array(1, 2, 5, 2, seed=2)
    mask = np.ones((3, 5), bool)
    mask[1] = False
    s = q @ np.repeat(k, 2, 1).swapaxes(2, 3) / np.float32(np.sqrt(2))
    e = np.exp(s) * mask
    want = e / np.where(mask.any(1), e.sum(3), 1)[..., None] @ np.repeat(v, 2, 1)
    close([one("Attention", q, k, v, mask)], [want])


@pytest.mark.parametrize("reset", [0, 1])
def test_gru_by_its_formula(reset):
    x, w, r, b = array(3, 2, 4), array(1, 6, 4, seed=1), array(1, 6, 2), array(1, 12)
    y, h = np.zeros((3, 1, 2, 2), np.float32), np.zeros((2, 2), np.float32)
    (wz, wr, wh), (rz, rr, rh) = np.split(w[0], 3), np.split(r[0], 3)
    (bz, br, bh), (cz, cr, ch) = np.split(b[0, :6], 3), np.split(b[0, 6:], 3)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    for t in range(3):
        z = sigmoid(x[t] @ wz.T + bz + h @ rz.T + cz)
        g = sigmoid(x[t] @ wr.T + br + h @ rr.T + cr)
        inner = g * (h @ rh.T + ch) if reset else (g * h) @ rh.T + ch
        h = (1 - z) * np.tanh(x[t] @ wh.T + bh + inner) + z * h
        y[t, 0] = h
    got = one("GRU", x, w, r, b, n_out=2, hidden_size=2, linear_before_reset=reset)
    close(got, [y, h[None]])


def test_quantising_rounds_ties_to_even_and_saturates():
    x = np.array([0.5, 1.5, 2.5, -0.5, 300, -300], np.float32)
    one_, zero = np.float32(1), np.uint8(10)
    close([one("QuantizeLinear", x, one_, zero)], [np.array([10, 12, 12, 10, 255, 0], np.uint8)])
    y, scale, at = one("DynamicQuantizeLinear", np.array([0, 2, -3], np.float32), n_out=3)
    assert scale == np.float32(5 / 255) and at == 153
    np.testing.assert_array_equal(y, [153, 255, 0])


def test_products_of_whole_numbers_are_exact():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (3, 40), np.uint8), rng.integers(-128, 128, (40, 5), np.int8)
    want = (a.astype(int) - 7) @ (b.astype(int) + 3)
    close([one("MatMulInteger", a, b, np.uint8(7), np.int8(-3))], [want.astype(np.int32)])
    x = rng.integers(0, 256, (1, 2, 5, 5), np.uint8)
    w = rng.integers(0, 256, (3, 2, 3, 3), np.uint8)
    total = one("ConvInteger", x, w, np.uint8(9))
    assert total[0, 1, 2, 2] == ((x.astype(int) - 9)[0, :, 2:5, 2:5] * w[1]).sum()


def test_reductions_of_nothing_and_orders():
    x = np.zeros((2, 0), np.float32)
    close([one("ReduceMax", x, np.array([1]), known=[1], keepdims=0)],
          [np.full(2, -np.inf, np.float32)])
    close([one("CumSum", np.arange(1, 4.0), np.array(0), known=[1], exclusive=1, reverse=1)],
          [np.array([5.0, 3.0, 0.0])])
    ties = np.array([[1, 3, 3]], np.float32)
    assert one("ArgMax", ties, axis=1, select_last_index=1) == 2
    assert one("ArgMax", ties, axis=1) == 1


def test_a_loop_is_unrolled_and_a_branch_chosen():
    def info(name, kind, shape):
        return onnx.helper.make_tensor_value_info(name, kind, shape)

    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["s", "x"], ["t"]),
         onnx.helper.make_node("Identity", ["c"], ["d"])], "body",
        [info("i", 7, []), info("c", 9, []), info("s", 1, [2])],
        [info("d", 9, []), info("t", 1, [2])])
    model = file_of([("Loop", ["n", "", "x"], ["y"], {"body": body})],
                    {"x": array(2)}, {"n": np.array(3)})
    graph = infer.import_onnx(model)
    assert graph.count("add") == 3
    np.testing.assert_allclose(graph.run(array(2)), 4 * array(2), rtol=1e-6)


@pytest.mark.parametrize("rows", [(), "a", "y", "ay"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_product_of_bytes_has_a_scale_for_each_row_and_column(rows, columns, stacked):
    """As the standard says: of a one or one a row, of b one or one a column. Square, so that a
    factor along the wrong axis is no error but a wrong number."""
    rng = np.random.default_rng(0)
    a = rng.integers(0, 200, (2, 4, 4) if stacked else (4, 4)).astype(np.uint8)
    b = rng.integers(-90, 90, (4, 4)).astype(np.int8)

    def factors(several, dtype, low, high):
        return rng.uniform(low, high, 4 if several else 1).astype(dtype)

    sa, za = factors("a" in rows, "f4", 0.1, 0.9), factors("a" in rows, "u1", 0, 99)
    sb, zb = factors(columns, "f4", 0.1, 0.9), factors(columns, "i1", 0, 9)
    sy, zy = factors("y" in rows, "f4", 20, 90), factors("y" in rows, "u1", 90, 160)

    def row(v):
        return v.astype("f8")[:, None] if len(v) > 1 else v.astype("f8")

    x, w = (a - row(za)) * row(sa), (b - zb.astype("f8")) * sb.astype("f8")
    want = np.clip(np.rint(x @ w / row(sy)) + row(zy), 0, 255)
    got = np.asarray(one("QLinearMatMul", a, sa, za, b, sb, zb, sy, zy)).astype("f8")
    # the factor is rounded to float32, so a half may be rounded the other way
    assert np.abs(got - want).max() <= 1 and 20 < want.std()


@pytest.mark.parametrize("which, wanted", [(True, [6, 7]), (False, [7, 14])])
def test_the_branches_of_if_have_constants_of_their_own(which, wanted):
    """Both are called c, as the condition is outside."""
    x = np.array([1, 2], np.float32)
    add, multiply = branch("Add", 5), branch("Mul", 7)
    model = file_of([("If", ["c"], ["y"], {"then_branch": add, "else_branch": multiply})],
                    {"x0": x}, {"c": np.array(which)})
    np.testing.assert_array_equal(infer.import_onnx(model).run(x), wanted)


@pytest.mark.parametrize("scale", [array(1), array(4), array(3, 4), array(3, 1)])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_norms_with_a_scale_that_is_broadcast(axis, scale):
    x = array(2, 3, 4)
    over = tuple(range(axis % 3, 3))
    mean = x.mean(over, keepdims=True)
    square, var = (x * x).mean(over, keepdims=True), x.var(over, keepdims=True)
    close([one("RMSNormalization", x, scale, axis=axis, opset=23)],
          [x / np.sqrt(square + np.float32(1e-5)) * scale])
    y, rstd = (x - mean) / np.sqrt(var + 1e-5) * scale, 1 / np.sqrt(var + np.float32(1e-5))
    close([one("LayerNormalization", x, scale, axis=axis)], [y])
    close(one("LayerNormalization", x, scale, axis=axis, n_out=3), [y, mean, rstd])


@pytest.mark.parametrize("by_column, wanted", [(0, [6, 7, 10, 11]), (1, [7, 10, 8, 11])])
def test_places_of_largest_elements_count_over_all_images(by_column, wanted):
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    order = {"storage_order": 1} if by_column else {}
    y, at = one("MaxPool", x, kernel_shape=[2, 3], n_out=2, **order)
    np.testing.assert_array_equal(y.ravel(), x[:, :, 1:, 2:].ravel())
    np.testing.assert_array_equal(at.ravel(), wanted + [i + 12 for i in wanted])


@pytest.mark.parametrize("left, right", [(1, -1), (-1, 0), (2, 1), (0, 0)])
def test_attention_looks_into_its_window(left, right):
    q, k, v = (array(1, 2, 5, 4, seed=i) for i in range(3))
    away = np.arange(5) - np.arange(5)[:, None]  # key - query
    seen = ((away >= -left) | (left < 0)) & ((away <= right) | (right < 0))
    e = np.exp(q @ k.swapaxes(2, 3) / 2) * seen
    close([one("Attention", q, k, v, left_window_size=left, right_window_size=right)],
          [e / e.sum(3, keepdims=True) @ v])


@pytest.mark.parametrize("a", [-0.75, -0.5])
def test_resize_by_keys_cubic(a):
    """Twice as many places: between those that were, a quarter from one."""
    x = np.zeros((1, 1, 1, 9), np.float32)
    x[..., 4] = 1  # the weights of its neighbours
    t = np.abs((np.arange(18) + 0.5) / 2 - 0.5 - 4)
    near, far = (a + 2) * t**3 - (a + 3) * t**2 + 1, a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    want = np.where(t <= 1, near, np.where(t < 2, far, 0)).astype(np.float32)
    got = one("Resize", x, None, np.array([1, 1, 1, 2], np.float32), known=[2], mode="cubic",
              cubic_coeff_a=a)
    close([got.ravel()], [want])
