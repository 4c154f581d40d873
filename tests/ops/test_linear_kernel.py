"""minidl/ops/linear.py: the product in panels, the bias, its gradient."""

import numpy as np
import pytest

import minidl
from minidl import cuda, nn
from minidl.nn import functional as F
from minidl.ops import linear
from minidl.precision import amp
from minidl.tensor import Tensor
from tests.kernel_arrays import normal, with_and_without


def reference(x, w, b):
    """x w^T + b in float64."""
    return x.astype(np.float64) @ w.T.astype(np.float64) + (0 if b is None else b)


# (rows, depth, cols): nothing; one; a group, a strip, a panel, a chunk and a slab, one less and one
# more; primes; more than a slab and enough blocks for several threads
SHAPES = [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (12, 32, 32), (11, 31, 31), (13, 33, 33),
          (5, 33, 63), (6, 32, 64), (7, 31, 65), (47, 511, 15), (48, 512, 16), (49, 513, 17),
          (97, 1025, 101), (240, 300, 1024)]


@pytest.fixture
def ours(monkeypatch):
    """Every product is ours, on any processor and of any size."""
    monkeypatch.setattr(linear, "BEATS_BLAS", True)
    monkeypatch.setattr(linear, "MIN_WORK", 0)


@pytest.fixture
def products(monkeypatch):
    """The shapes of the products that the kernel makes, in order."""
    seen, product = [], linear.our_product

    def watched(a, b, *args, **options):
        seen.append((*a.shape, b.shape[1]))
        return product(a, b, *args, **options)

    monkeypatch.setattr(linear, "our_product", watched)
    return seen


def close(got, want, depth):
    """float32 sums of `depth` products of normal numbers: errors add up like a random walk, six
    times that is never met."""
    np.testing.assert_allclose(got, want, rtol=0, atol=6 * 2.0**-24 * (depth + 1))


@pytest.mark.parametrize("a_way", ["rows", "columns"])
@pytest.mark.parametrize("b_way", ["rows", "columns"])
@pytest.mark.parametrize("shape", SHAPES)
def test_product_in_every_layout(shape, a_way, b_way):
    rows, depth, cols = shape
    a, b, bias = normal((rows, depth), "f4", 1), normal((depth, cols), "f4", 2), normal(
        cols, "f4", 3)
    a = np.asfortranarray(a) if a_way == "columns" else a
    b = np.asfortranarray(b) if b_way == "columns" else b
    c, sums = linear.our_product(a, b, bias, want_sums=True)
    close(c, reference(a, b.T, bias), depth)
    close(sums, a.astype("f8").sum(1), depth)
    c, sums = linear.our_product(a, b)
    close(c, reference(a, b.T, None), depth)
    assert sums.size == 0


@pytest.mark.parametrize("shape", [(1, 1), (6, 64), (7, 65), (193, 64), (256, 256), (2048, 256),
                                   (5000, 5000)])
def test_blocks_are_whole_tiles_and_enough(shape):
    """At most MAX_ROWS high; as many as several threads need, where there are as many tiles."""
    height, width = linear.blocks(*shape)
    assert height % linear.ROWS == 0 and width % linear.COLS == 0 and height <= linear.MAX_ROWS
    tiles = -(-shape[0] // linear.ROWS) * -(-shape[1] // linear.COLS)
    n = -(-shape[0] // height) * -(-shape[1] // width)
    assert n >= min(tiles, linear.MIN_BLOCKS) / 2  # 33 groups: two a block, 17 blocks


def test_operands_that_are_slices():
    a, b = normal((60, 80), "f4", 1)[::2, 1::3], normal((54, 200), "f4", 2)[::2, ::3]
    close(linear.our_product(a, b)[0], reference(a, b.T, None), 27)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7,), (2, 3, 7), (5, 0, 7), (301, 7)])
def test_the_op_equals_the_op_without_kernels(shape, bias, ours, products):
    arrays = [normal(shape, "f4", 1), normal((5, 7), "f4", 2)] + [normal(5, "f4", 3)] * bias
    g = normal((*shape[:-1], 5), "f4", 4)
    (y, gradients), (plain_y, plain_gradients) = with_and_without(F.linear, arrays, g)
    assert len(products) == 3  # y, gx and gw, and none without kernels
    assert y.shape == plain_y.shape
    close(y, plain_y, 7)
    for got, want in zip(gradients, plain_gradients, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        close(got, want, 301)


def test_autocast_multiplies_halves_and_sums_in_float32(ours, products):
    arrays = normal((64, 512), "f4", 1), normal((256, 512), "f4", 2), normal(256, "f4", 3)
    x, w, b = (Tensor(a, requires_grad=True) for a in arrays)
    halves = [a.astype("f2") for a in arrays]
    with amp.autocast():
        y = F.linear(x, w, b)
    assert y.dtype == np.float16 and products
    # one rounding of the result, 2^-11, and where the bias is added another
    np.testing.assert_allclose(y, reference(*halves), rtol=2.0**-10, atol=1e-3)
    y.backward(g := normal((64, 256), "f2", 4))
    np.testing.assert_allclose(w.grad, g.T.astype("f8") @ halves[0], rtol=2.0**-10, atol=1e-3)
    np.testing.assert_allclose(b.grad, g.sum(0, dtype="f8"), rtol=2.0**-10, atol=1e-3)


@pytest.mark.parametrize("needs", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)])
def test_only_the_gradients_that_are_wanted(needs, ours):
    arrays = normal((9, 4), "f4", 1), normal((3, 4), "f4", 2), normal(3, "f4", 3)
    x, w, b = (Tensor(a, requires_grad=bool(n)) for a, n in zip(arrays, needs))
    y = F.linear(x, w, b)
    assert [s is not None for s in y.grad_fn.saved] == [bool(needs[1]), bool(needs[0])]
    y.backward(g := normal((9, 3), "f4", 4))
    for t, want in zip((x, w, b), (g @ arrays[1], g.T @ arrays[0], g.sum(0))):
        assert (t.grad is not None) == t.requires_grad
        if t.requires_grad:
            close(t.grad, want, 9)


@pytest.mark.parametrize("transposed", [False, True])
def test_the_same_bits_with_any_number_of_threads(transposed):
    a = normal((700, 600), "f4", 1)
    a, b = a.T if transposed else a, normal((700 if transposed else 600, 96), "f4", 2)
    before = cuda.set_threads(1)
    try:
        one = linear.our_product(a, b, want_sums=True)
        for n in (2, 3):
            cuda.set_threads(n)
            for got, want in zip(linear.our_product(a, b, want_sums=True), one):
                np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(linear.our_product(a, b)[0], one[0])  # rows read in place
    finally:
        cuda.set_threads(before)


def test_infinity_and_nan_stay_in_their_row_and_column():
    a, b = normal((50, 40), "f4", 1), normal((40, 35), "f4", 2)
    a[49, 3], b[5, 34] = np.nan, np.inf
    c = linear.our_product(a, b)[0]
    assert np.isnan(c[49]).all() and np.isinf(c[:49, 34]).all() and np.isfinite(c[:49, :34]).all()


@pytest.mark.parametrize("way", [np.ascontiguousarray, np.asfortranarray])
def test_watched_kernels_touch_nothing_that_is_not_theirs(monkeypatch, way):
    """Edges in all directions: no access out of bounds, no race, everything written. 61 columns
    fill the room for them whether a panel has 8, 16 or 64."""
    def watched(file, name):
        outputs = {"linear_pack": ["packed"], "linear_pack_rows": ["packed", "sums"],
                   "linear_product": ["c"]}[name]

        def launch(grid, block, args):
            report = cuda.check(file, grid, block, args, name=name, defines={"T": "float"},
                                outputs=outputs)
            assert not report.findings, report
        return launch

    monkeypatch.setattr(linear.dispatch, "kernel", watched)
    monkeypatch.setattr(linear, "aligned", lambda n: np.empty(n, np.float32))  # contiguous, no more
    a, b = way(normal((61, 35), "f4", 1)), way(normal((35, 61), "f4", 2))
    for want_sums in (True, False):  # False: rows are read in place
        c, sums = linear.our_product(a, b, normal(61, "f4", 3), want_sums)
        close(c, reference(a, b.T, normal(61, "f4", 3)), 35)
        close(sums, a.astype("f8").sum(1)[:len(sums)], 35)


def test_layers_use_it_where_it_is_faster_than_blas(monkeypatch, products):
    layer, x = nn.Linear(256, 256), Tensor(normal((64, 256), "f4", 1))

    def runs(x):
        products.clear()
        layer(x).sum().backward()
        return len(products)

    monkeypatch.setattr(linear, "BEATS_BLAS", True)
    assert runs(x) == 2  # y and gw
    assert runs(x[:63]) == 0  # too small
    with minidl.use_fused(False):
        assert runs(x) == 0
    with pytest.raises(ValueError, match="linear: input"):
        F.linear(x, Tensor(normal((256, 255), "f4", 2)))
    monkeypatch.setattr(linear, "BEATS_BLAS", False)
    assert runs(x) == 0
