"""Convolutions by the kernels of a CPU: kernels/cpu/conv.cu and conv_winograd.cu."""

import numpy as np
import pytest

import minidl
from minidl.cuda import device, dispatch, run
from minidl.nn import functional as F
from minidl.ops import conv_columns, conv_cpu
from minidl.ops.patches import output_size
from tests.conftest import some

pytestmark = pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler")

# images, channels, outputs, (height, width), kernel, stride, padding, dilation, groups
SIZES = [
    (1, 1, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, 8, 9, (5, 7), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (3, 16, 17, (8, 8), (3, 3), (1, 1), (0, 0), (1, 1), 1),
    (2, 33, 40, (2, 3), (3, 3), (1, 1), (2, 1), (1, 1), 1),
    (5, 9, 70, (17, 33), (3, 3), (1, 1), (1, 0), (1, 1), 1),
    (1, 8, 8, (1, 1), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (1, 10, 8, (3, 70), (3, 3), (1, 1), (3, 4), (1, 1), 1),
    (3, 3, 7, (9, 11), (5, 2), (1, 1), (2, 1), (1, 1), 1),
    (2, 5, 13, (10, 9), (3, 3), (2, 2), (1, 1), (1, 1), 1),
    (2, 4, 6, (9, 40), (3, 3), (1, 2), (0, 1), (2, 1), 1),
    (2, 4, 6, (11, 12), (3, 3), (3, 2), (1, 2), (2, 3), 2),
    (2, 6, 4, (7, 6), (1, 1), (2, 3), (0, 0), (1, 1), 2),  # phases without a tap
    (3, 20, 30, (8, 16), (1, 1), (1, 1), (0, 0), (1, 1), 1),  # read in place
    (2, 7, 7, (6, 19), (3, 3), (1, 1), (1, 1), (1, 1), 7),  # depthwise
    (2, 3, 6, (9, 8), (3, 2), (2, 2), (2, 0), (2, 1), 3),
    (1, 64, 8, (12, 12), (7, 7), (2, 2), (3, 3), (1, 1), 1),
    (4, 2, 3, (1, 90), (1, 4), (1, 4), (0, 3), (1, 1), 1),  # conv1d
    (2, 3, 7, (1, 1300), (1, 5), (1, 2), (0, 2), (1, 3), 1),  # rows that are cut
    (1, 3, 7, (3, 1300), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, 3, 3, (2, 1300), (2, 5), (1, 2), (1, 2), (1, 3), 3),
    (1, 600, 530, (3, 2), (1, 1), (1, 1), (0, 0), (1, 1), 1),  # many channels
    (1, 150, 20, (6, 5), (4, 4), (1, 1), (2, 2), (1, 1), 1),
    (2, 200, 140, (16, 18), (3, 3), (1, 1), (1, 1), (1, 1), 1),  # Winograd in chunks
    (1, 1, 2, (40, 41), (33, 31), (1, 1), (0, 0), (1, 1), 1),
]


def arrays(n, c, o, size, kernel, stride, padding, dilation, groups, rng=None):
    """x, w, b, gy and the options of these sizes; float32."""
    rng = rng or np.random.default_rng(n + c + o)
    out = [output_size(s + 2 * p, k, st, d)
           for s, k, st, p, d in zip(size, kernel, stride, padding, dilation)]
    shapes = (n, c, *size), (o, c // groups, *kernel), (o,), (n, o, *out)
    options = stride, tuple((p, p) for p in padding), dilation, groups
    return *(rng.standard_normal(s).astype(np.float32) for s in shapes), options


def four(run, x, w, b, gy, options):
    """What the four functions of a module give."""
    return (run.forward(x, w, b, options, gy.shape[2:]), run.by_input(gy, w, x.shape, options),
            run.by_weight(gy, x, w, options), run.by_bias(gy))


def assert_close(got, wanted, eps, n_terms):
    """A sum of n terms: an error of sqrt(n) roundings of its largest terms, of which the largest
    element of the result is a measure."""
    for a, t in zip(got, wanted, strict=True):
        assert a.shape == t.shape
        bound = 4 * eps * np.sqrt(n_terms) * max(abs(t).max(initial=0), 1)
        np.testing.assert_allclose(a, t, rtol=0, atol=bound)


@pytest.mark.parametrize("sizes", SIZES)
def test_equals_the_columns_in_float64(sizes):
    x, w, b, gy, options = arrays(*sizes)
    wanted = four(conv_columns, *(a.astype(np.float64) for a in (x, w, b, gy)), options)
    assert_close(four(conv_cpu, x, w, b, gy, options), wanted, np.finfo(np.float32).eps, x.size)


@pytest.mark.parametrize("sizes", some(SIZES[1::3]))
def test_half_is_rounded_once(sizes):
    *full, options = arrays(*sizes)
    half = [a.astype(np.float16) for a in full]
    wanted = four(conv_columns, *(a.astype(np.float64) for a in half), options)
    got = four(conv_cpu, *half, options)
    assert all(a.dtype == np.float16 for a in got[:3])
    assert_close([a.astype(np.float64) for a in got], wanted, np.finfo(np.float16).eps, 1)


@pytest.mark.parametrize("sizes", [SIZES[4], SIZES[8], SIZES[14]])
def test_the_same_bits_with_any_number_of_threads(sizes):
    *inputs, options = arrays(*sizes)
    found, before = [], run.n_threads()
    try:
        for n in (1, 2, 5):
            run.set_threads(n)
            found.append(four(conv_cpu, *inputs, options))
    finally:
        run.set_threads(before)
    for others in found[1:]:
        for a, b in zip(others, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sizes", [SIZES[2], SIZES[3], SIZES[8], SIZES[14], SIZES[16]])
def test_what_lies_around_the_arrays_is_not_touched(sizes):
    """A vector of 16 may reach past the end of a row, never past the end of an array."""
    *inputs, options = arrays(*sizes)
    wanted = four(conv_cpu, *inputs, options)
    memory = [np.full(a.size + 128, np.nan, np.float32) for a in inputs]
    inside = [m[64:64 + a.size].reshape(a.shape) for m, a in zip(memory, inputs)]
    for a, value in zip(inside, inputs, strict=True):
        a[...] = value
    for a, b in zip(four(conv_cpu, *inside, options), wanted, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("sizes", [
    (4, 64, 64, (16, 16)), (2, 8, 8, (30, 30)), (8, 32, 64, (26, 26))])
def test_winograd_rounds_as_the_plain_form_and_highest_leaves_it_out(sizes, monkeypatch):
    monkeypatch.setattr(device, "_winograd", True)
    n, _, _, size = sizes
    x, w, b, gy, options = arrays(*sizes, (3, 3), (1, 1), (1, 1), (1, 1), 1)
    assert conv_cpu.by_winograd(w.shape, options, n, size)
    wanted = four(conv_columns, *(a.astype(np.float64) for a in (x, w, b, gy)), options)
    fast = four(conv_cpu, x, w, b, gy, options)
    minidl.set_float32_matmul_precision("highest")
    assert not conv_cpu.by_winograd(w.shape, options, n, size)
    exact = four(conv_cpu, x, w, b, gy, options)
    for winograd, plain, true in zip(fast[:3], exact[:3], wanted[:3], strict=True):
        errors = [np.sqrt(np.mean((y - true) ** 2)) for y in (winograd, plain)]
        assert 0 < errors[0] < 1.25 * errors[1], errors
    minidl.set_float32_matmul_precision("high")
    assert conv_cpu.by_winograd(w.shape, options, n, size)


def test_the_transposed_convolution_runs_it_the_other_way_round():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    rng = np.random.default_rng(3)
    for stride, padding, more, dilation, groups in [
            (1, 1, 0, 1, 1), (2, 1, 1, 1, 1), (2, 0, 0, 1, 2), (3, 2, 2, 2, 1)]:
        x, w, b = (rng.standard_normal(s).astype(np.float32)
                   for s in ((2, 8, 5, 6), (8, 16 // groups, 3, 3), (16,)))
        ours = [minidl.Tensor(a, requires_grad=True) for a in (x, w, b)]
        theirs = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (x, w, b)]
        options = stride, padding, more, groups, dilation
        y = F.conv_transpose2d(*ours, *options)
        wanted = torch.nn.functional.conv_transpose2d(*theirs, *options)
        gy = rng.standard_normal(y.shape).astype(np.float32)
        y.backward(gy)
        wanted.backward(torch.tensor(gy, dtype=torch.float64))
        assert_close([y.numpy(), *(a.grad.numpy() for a in ours)],
                     [wanted.detach().numpy(), *(t.grad.numpy() for t in theirs)], 1.2e-7, 100)
