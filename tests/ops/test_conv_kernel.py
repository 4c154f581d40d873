"""minidl/ops/conv_kernel.py: every rung, forward, by input and by weight, against loops over the
taps in float64, which PyTorch confirms; the loads that each rung saves; any order of threads."""

import math
from collections import namedtuple

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl import backend
from minidl.cuda import dispatch, rows
from minidl.ops import conv_kernel
from minidl.ops.conv import output_size
from tests.kernel_arrays import counts_packs, normal

Case = namedtuple("Case", "x w stride padding dilation groups")
SAME, NONE = ((1, 1), (1, 1)), ((0, 0), (0, 0))
ONE = 1, 1
CASES = {
    "one pixel": Case((1, 1, 1, 1), (1, 1, 1, 1), ONE, NONE, ONE, 1),
    "3 x 3": Case((2, 3, 7, 6), (5, 3, 3, 3), ONE, SAME, ONE, 1),
    "several blocks": Case((3, 2, 5, 7), (67, 2, 3, 3), ONE, ((1, 0), (0, 1)), ONE, 1),
    "128 channels and two": Case((1, 2, 5, 2), (130, 2, 2, 1), ONE, NONE, ONE, 1),
    "strides": Case((1, 4, 9, 8), (6, 2, 3, 2), (2, 3), ((1, 0), (2, 1)), (1, 2), 2),
    "phases without a tap": Case((2, 2, 8, 7), (3, 2, 2, 1), (3, 4), ((2, 1), (0, 2)), ONE, 1),
    "stride and dilation": Case((1, 2, 11, 9), (4, 1, 3, 3), (4, 2), SAME, (2, 4), 2),
    "pointwise": Case((3, 4, 4, 4), (4, 4, 1, 1), ONE, NONE, ONE, 1),
    "pointwise, stride": Case((1, 3, 5, 4), (5, 3, 1, 1), (2, 2), NONE, ONE, 1),
    "packs": Case((2, 8, 3, 8), (5, 8, 3, 1), ONE, ((1, 1), (0, 0)), ONE, 1),
    "packs, far apart": Case((1, 2, 2, 16), (3, 2, 2, 2), ONE, ((1, 0), (0, 8)), (1, 8), 1),
    "padding in packs": Case((1, 4, 3, 8), (3, 4, 2, 1), ONE, ((0, 1), (8, 8)), ONE, 1),
    "a sequence": Case((2, 3, 1, 19), (4, 3, 1, 5), (1, 2), ((0, 0), (2, 2)), ONE, 1),
    "depthwise": Case((2, 5, 6, 7), (5, 1, 3, 3), ONE, SAME, ONE, 5),
    "depthwise, strides": Case((3, 3, 7, 9), (3, 1, 3, 2), (2, 3), ((0, 2), (1, 1)), (2, 1), 3),
    "3 x 3, odd": Case((1, 5, 3, 5), (33, 5, 3, 3), ONE, NONE, ONE, 1),
    "3 x 3, groups": Case((2, 6, 4, 4), (4, 3, 3, 3), ONE, ((2, 2), (2, 0)), ONE, 2),
}
RUNGS = 1, 2, 3, 4, 5, "winograd", "depthwise"
WEIGHT_RUNGS = 1, 2, 3, 5, "depthwise"
# Of the largest value wanted. float32 rounds by 6e-8; a sum of n products in another order differs
# by some sqrt(n) of these, here n < 300, and Winograd's sums lose two bits more. float16: the
# products are exact in float32, the result is rounded by 2^-11.
CLOSE = {"f4": 5e-6, "f2": 6e-4, "f8": 1e-14}

if not dispatch.cpu_compiler():
    pytest.skip("no C++ compiler: kernels cannot run without a GPU", allow_module_level=True)


def out_of(case):
    return tuple(output_size(n + sum(p), k, s, d) for n, p, k, s, d in zip(
        case.x[2:], case.padding, case.w[2:], case.stride, case.dilation, strict=True))


def arrays(case, dtype):
    """x, w, b, gy."""
    gy = case.x[0], case.w[0], *out_of(case)
    return [normal(shape, dtype, seed) for seed, shape in enumerate([
        case.x, case.w, case.w[:1], gy])]


def options(case):
    return case.stride, case.padding, case.dilation, case.groups


def each_tap(case):
    """(channel out, channel in, its place in w, the places of the padded image that it reads)."""
    n_out, n_in = case.w[:2]
    for o, c, i, j in np.ndindex(case.w):
        places = (slice(at * d, at * d + (n - 1) * s + 1, s) for at, d, n, s in zip(
            (i, j), case.dilation, out_of(case), case.stride, strict=True))
        yield o, o // (n_out // case.groups) * n_in + c, (o, c, i, j), tuple(places)


def reference(case, x, w, b, gy):
    """(y, gx, gw) in float64."""
    x, w, b, gy = (a.astype("f8") for a in (x, w, b, gy))
    padded = np.pad(x, ((0, 0), (0, 0), *case.padding))
    y, gw, g_padded = np.zeros_like(gy) + b[:, None, None], np.zeros_like(w), padded * 0
    for o, c, place, (high, wide) in each_tap(case):
        seen = padded[:, c, high, wide]
        y[:, o] += w[place] * seen
        gw[place] = (gy[:, o] * seen).sum()
        g_padded[:, c, high, wide] += w[place] * gy[:, o]
    (top, _), (left, _) = case.padding
    return y, g_padded[:, :, top:top + x.shape[2], left:left + x.shape[3]], gw


def pairs(rungs):
    """(rung, dtype), all that there are: tensor cores multiply halves alone."""
    return [(rung, dtype) for rung in rungs for dtype in CLOSE if rung != 5 or dtype == "f2"]


def takes(rung, case):
    """Whether a rung is for this case."""
    if rung == "depthwise":
        return case.groups == case.x[1] == case.w[0]
    return rung != "winograd" or (case.w[2:], case.stride, case.dilation) == ((3, 3), ONE, ONE)


def assert_close(got, want, dtype, case):
    assert got.dtype == dtype and got.shape == want.shape, case
    error = np.max(np.abs(got - want)) / np.max(np.abs(want))
    assert error <= CLOSE[dtype], f"{case}: {error:.1e}"


@pytest.mark.parametrize("rung, dtype", pairs(RUNGS))
def test_every_rung_is_the_formula_forward_and_by_input(rung, dtype):
    n_run = 0
    for name, case in CASES.items():
        if not takes(rung, case):
            continue
        x, w, b, gy = arrays(case, dtype)
        y, gx, _ = reference(case, x, w, b, gy)
        got = conv_kernel.forward(x, w, b, options(case), out_of(case), rung=rung)
        assert_close(got, y, dtype, name)
        got = conv_kernel.by_input(gy, w, x.shape, options(case), rung=rung)
        assert_close(got, gx, dtype, name)
        n_run += 1
    assert n_run >= 2


@pytest.mark.parametrize("rung, dtype", pairs(WEIGHT_RUNGS))
def test_every_rung_is_the_formula_by_weight(rung, dtype):
    n_run = 0
    for name, case in CASES.items():
        if not takes(rung, case):
            continue
        x, w, b, gy = arrays(case, dtype)
        got = conv_kernel.by_weight(gy, x, w, options(case), rung=rung)
        assert_close(got, reference(case, x, w, b, gy)[2], dtype, name)
        n_run += 1
    assert n_run >= 2


def test_the_loops_are_pytorchs():
    torch = pytest.importorskip("torch")
    for name, case in CASES.items():
        x, w, b, gy = (torch.tensor(a, requires_grad=True) for a in arrays(case, "f8"))
        (top, bottom), (left, right) = case.padding
        padded = torch.nn.functional.pad(x, (left, right, top, bottom))
        y = torch.nn.functional.conv2d(padded, w, b, case.stride, 0, case.dilation, case.groups)
        y.backward(gy)
        got = reference(case, *(a.detach().numpy() for a in (x, w, b, gy)))
        for ours, theirs in zip(got, (y.detach(), x.grad, w.grad), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("rung, dtype", [(1, "f4"), (2, "f4"), (4, "f4"), (5, "f2")])
def test_by_input_with_a_bias_is_the_transposed_convolution(rung, dtype):
    """The bias is there once, also where no input reaches."""
    for name in "strides", "phases without a tap", "3 x 3":
        case = CASES[name]
        x, w, b, gy = arrays(case, dtype)
        bias = normal(x.shape[1], dtype, 9)
        got = conv_kernel.by_input(gy, w, x.shape, options(case), b=bias, rung=rung)
        want = reference(case, x, w, b, gy)[1] + bias.astype("f8")[:, None, None]
        assert_close(got, want, dtype, name)


def test_without_a_bias_and_without_images():
    case = CASES["3 x 3"]
    x, w, b, gy = arrays(case, "f4")
    y = conv_kernel.forward(x, w, None, options(case), out_of(case), rung=3)
    assert_close(y, reference(case, x, w, 0 * b, gy)[0], "f4", "no bias")
    none = conv_kernel.forward(x[:0], w, b, options(case), out_of(case), rung=3)
    assert none.shape == (0, *y.shape[1:])
    for rung in WEIGHT_RUNGS[:3]:
        gw = conv_kernel.by_weight(gy[:0], x[:0], w, options(case), rung=rung)
        assert gw.shape == w.shape and not gw.any()


@pytest.mark.parametrize("rung, dtype", [(4, "f4"), (5, "f2")])
@pytest.mark.parametrize("name", ["packs", "pointwise"])
def test_arrays_may_begin_anywhere_and_be_views(name, rung, dtype):
    case = CASES[name]
    x, w, b, gy = arrays(case, dtype)
    y, gx, gw = reference(case, x, w, b, gy)

    def moved(a):  # begins at no multiple of 16 bytes
        memory = np.empty(a.size + 1, a.dtype)
        memory[1:] = a.reshape(-1)
        return memory[1:].reshape(a.shape)

    turned = np.asfortranarray(x)
    for some in (moved(x), moved(w), moved(gy)), (turned, w, gy), (x, np.asfortranarray(w), gy):
        x_, w_, gy_ = some
        got = conv_kernel.forward(x_, w_, b, options(case), out_of(case), rung=rung)
        assert_close(got, y, dtype, name)
        got = conv_kernel.by_input(gy_, w_, x.shape, options(case), rung=rung)
        assert_close(got, gx, dtype, name)
        got = conv_kernel.by_weight(gy_, x_, w, options(case),
                                           rung=rung if rung == 5 else 3)
        assert_close(got, gw, dtype, name)


@pytest.fixture
def reports(monkeypatch):
    """Every launch in the check form, without a finding: {kernel: its last report}."""
    found = {}

    def kernel(file, name, dtype, **defines):
        types = {"T": dispatch.C_TYPES[dtype], "ACC": dispatch.SUM_TYPES[dtype]}

        def launch(grid, block, args, shared_mem=0):
            report = cuda.check(file, grid, block, args, name=name, defines={**types, **defines},
                                outputs=outputs[name.startswith("conv_weight")],
                                shared_mem=shared_mem)
            assert not report.findings, str(report)
            found[name] = report
        return launch

    outputs = [["y"], []]
    monkeypatch.setattr(conv_kernel.rows, "kernel", kernel)
    return found


# "groups" has 27 taps and 48 pixels, "odd" 45 taps and 5 channels: tiles are filled again.
WATCHED = [(1, "f4", "strides"), (2, "f4", "3 x 3, groups"), (3, "f4", "3 x 3, groups"),
           (4, "f4", "3 x 3, groups"), (4, "f4", "packs"), (5, "f2", "3 x 3, groups"),
           (5, "f2", "3 x 3, odd"), ("winograd", "f4", "3 x 3, odd"),
           ("depthwise", "f4", "depthwise, strides")]


@pytest.mark.parametrize("rung, dtype, name", WATCHED)
def test_under_watch(rung, dtype, name, reports):
    """No stray access, no race, all of y written, the same bits in three orders of threads."""
    case = CASES[name]
    x, w, b, gy = arrays(case, dtype)
    got = conv_kernel.forward(x, w, b, options(case), out_of(case), rung=rung)
    y, _, gw = reference(case, x, w, b, gy)
    assert_close(got, y, dtype, name)
    assert len(reports) == 1
    if rung in WEIGHT_RUNGS:
        got = conv_kernel.by_weight(gy, x, w, options(case), rung=rung)
        assert_close(got, gw, dtype, name)
        assert len(reports) == (3 if rung in (3, 5) else 2)


@pytest.mark.parametrize("rung, side", [
    (1, (1, 1)), (2, (16, 16)), (3, (64, 64)), pytest.param(4, (64, 64), marks=counts_packs)])
def test_each_element_is_loaded_once_for_each_tile_it_serves(rung, side, reports):
    """Without padding each tap of each pixel is a load of x."""
    case = Case((1, 4, 6, 7), (18, 4, 2, 2), ONE, NONE, ONE, 1)
    x, w, b, _ = arrays(case, "f4")
    conv_kernel.forward(x, w, b, options(case), out_of(case), rung=rung)
    ((_, report),) = reports.items()
    n_rows, n_taps, n_pixels = 18, 16, 30
    assert report.ledger["x"].loads == n_taps * n_pixels * rows.blocks(n_rows, side[0])
    of_w = n_rows * n_taps * rows.blocks(n_pixels, side[1])
    assert report.ledger["w"].load_bytes == 4 * of_w
    assert report.ledger["w"].loads == (of_w // 4 if rung == 4 else of_w)  # four floats at once
    assert report.ledger["y"].stores == n_rows * n_pixels


@counts_packs
def test_packs_of_pixels_are_four_floats_a_load(reports):
    case = CASES["pointwise"]
    x, w, b, _ = arrays(case, "f4")
    conv_kernel.forward(x, w, b, options(case), out_of(case), rung=4)
    assert reports["conv_v4"].ledger["x"].load_bytes == x.nbytes
    assert reports["conv_v4"].ledger["x"].loads == x.size // 4


def test_winograd_reads_16_pixels_for_a_tile_where_its_patches_have_36(reports):
    case = Case((1, 3, 6, 8), (2, 3, 3, 3), ONE, NONE, ONE, 1)
    x, w, b, _ = arrays(case, "f4")
    n_tiles = math.prod(out_of(case)) // 4
    conv_kernel.forward(x, w, b, options(case), out_of(case), rung="winograd")
    assert reports["conv_winograd"].ledger["x"].loads == 3 * n_tiles * 16
    assert reports["conv_winograd"].ledger["w"].loads == w.size


@pytest.mark.parametrize("rung, dtype", [(3, "f4"), (5, "f2")])
def test_shares_of_the_pixels_change_with_the_shape_alone_and_add_in_their_order(rung, dtype):
    case = Case((1, 2, 24, 50), (2, 2, 1, 2), ONE, ((0, 0), (0, 1)), ONE, 1)
    share, n_shares = conv_kernel.shares(1200, 1)
    assert (share, n_shares) == (608, 2)
    x, w, b, gy = arrays(case, dtype)
    first = conv_kernel.by_weight(gy, x, w, options(case), rung=rung)
    # 1200 products, in the order of the shares: 20 times float32's rounding
    assert_close(first, reference(case, x, w, b, gy)[2], dtype, "two shares")
    for order in "descending", 5:
        again = conv_kernel.by_weight(gy, x, w, options(case), rung=rung,
                                             order=order)
        np.testing.assert_array_equal(first, again)


def test_arrays_of_cupy(strict_cupy):
    """The best rungs, on the stand-in for CuPy: what it refuses no launch needs."""
    device = backend.to_device

    for name, case in CASES.items():
        for dtype in "f4", "f2":
            x, w, b, gy = arrays(case, dtype)
            y, gx, gw = reference(case, x, w, 0 * b, gy)
            bias = normal(x.shape[1], dtype, 9)
            x, w, gy, bias_there = (device(a, "cuda") for a in (x, w, gy, bias))
            got = (conv_kernel.forward(x, w, None, options(case), out_of(case)),
                   conv_kernel.by_input(gy, w, x.shape, options(case), bias_there),
                   conv_kernel.by_weight(gy, x, w, options(case)))
            for ours, want in zip(got, (y, gx + bias[:, None, None], gw), strict=True):
                assert_close(device(ours, "cpu"), want, dtype, name)


def test_shares_cover_all_pixels_once():
    for n_pixels in (1, 31, 511, 1024, 1025, 10**6):
        for n_blocks in (1, 7, 264, 1000):
            share, n_shares = conv_kernel.shares(n_pixels, n_blocks)
            assert share % 32 == 0 and share * (n_shares - 1) < n_pixels <= share * n_shares
            few = n_shares * n_blocks <= 2 * conv_kernel.ENOUGH_BLOCKS
            assert n_shares == 1 or share >= conv_kernel.FEWEST_PIXELS and few


def test_the_best_rung_for_a_gpu():
    def best(case, dtype):
        row, column = (conv_kernel.conv_geometry.forward(n, k, s, p[0], d) for n, k, s, p, d in zip(
            out_of(case), case.w[2:], case.stride, case.padding, case.dilation, strict=True))
        groups = case.groups, case.w[0] // case.groups, *case.w[1:]
        shape = conv_kernel.shape_of(case.x, (*case.x[:1], case.w[0], *out_of(case)), groups,
                                     (row, column))
        choices = conv_kernel.best_rung, conv_kernel.best_weight_rung
        return [choose(None, np.dtype(dtype), shape) for choose in choices]

    wide = Case((2, 32, 8, 8), (32, 32, 3, 3), ONE, SAME, ONE, 1)
    assert best(wide, "f4") == ["winograd", 3]
    assert best(wide, "f2") == [5, 5]
    assert best(wide._replace(stride=(2, 2)), "f4") == [4, 3]
    assert best(CASES["3 x 3"]._replace(w=(6, 3, 3, 3)), "f4") == [4, 3]
    assert best(CASES["3 x 3"], "f4") == [1, 3]
    assert best(CASES["depthwise"], "f2") == ["depthwise", "depthwise"]


def test_what_a_rung_cannot_do_is_named():
    case = CASES["strides"]
    x, w, b, gy = arrays(case, "f4")
    with pytest.raises(TypeError, match=r"tensor cores\) wants float16; got float32"):
        conv_kernel.forward(x, w, b, options(case), out_of(case), rung=5)
    with pytest.raises(TypeError, match=r"tensor cores\) wants float16; got float32"):
        conv_kernel.by_weight(gy, x, w, options(case), rung=5)
    with pytest.raises(ValueError, match=r"3 x 3 .* got a 3 x 2 kernel, stride \(2, 3\), dilation "
                                         r"\(1, 2\)"):
        conv_kernel.forward(x, w, b, options(case), out_of(case), rung="winograd")
    with pytest.raises(ValueError, match="one input channel .* got 2 and 3"):
        conv_kernel.forward(x, w, b, options(case), out_of(case), rung="depthwise")


def test_more_than_a_launch_counts_is_refused():
    shape = conv_kernel.Shape(*[1] * len(conv_kernel.Shape._fields))
    conv_kernel.check(shape, 4, np.dtype("f4"))
    for too_large in dict(N=2**15, R=2**15, Q=2), dict(C=2**15, H=2**16), dict(G=2**16, M=2**15):
        with pytest.raises(ValueError, match="a launch can have at most 10"):
            conv_kernel.check(shape._replace(**too_large), 4, np.dtype("f4"))


def test_more_groups_than_a_grid_has_are_refused_but_not_by_rungs_that_do_not_care():
    case = Case((1, 65536, 1, 1), (65536, 1, 1, 1), ONE, NONE, ONE, 65536)
    x, w, b, _ = arrays(case, "f4")
    want = x.astype("f8") * w.reshape(x.shape) + b.reshape(x.shape)
    for rung in 1, "depthwise":
        got = conv_kernel.forward(x, w, b, options(case), out_of(case), rung=rung)
        assert_close(got, want, "f4", rung)
    with pytest.raises(ValueError, match=r"got the grid \(1, 1, 65536\) for conv_v2"):
        conv_kernel.forward(x, w, b, options(case), out_of(case), rung=2)
