"""Convolution and pooling: patches, sizes beyond the rows of samples_nn.py, and errors."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.ops import conv_columns
from minidl.ops.patches import patches

RNG = np.random.default_rng(9)


def image(*shape):
    return minidl.Tensor(RNG.standard_normal(shape), requires_grad=True)


def test_a_patch_is_what_lies_under_the_kernel():
    x = RNG.standard_normal((2, 3, 7, 9))
    view = patches(np, x, (3, 2), (2, 1), (1, 3))
    assert view.shape == (2, 3, 3, 6, 3, 2) and np.shares_memory(view, x)
    for i, j in np.ndindex(3, 6):
        np.testing.assert_array_equal(view[:, :, i, j], x[:, :, 2 * i:2 * i + 3, j:j + 4:3])


def test_patches_stay_inside_the_image():
    x = np.full((3, 3, 6, 6), np.nan)  # nan around an image of ones: a stray read would show
    x[1, 1] = 1
    for stride in (1, 2, 3):
        inside = x[1:2, 1:2]
        assert not np.isnan(patches(np, inside, (2, 3), (stride, stride), (2, 1))).any()


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("groups", [1, 2])
def test_all_options_together_equal_torch(stride, padding, dilation, groups):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, w, b = (RNG.standard_normal(s) for s in ((3, 4, 11, 7), (6, 4 // groups, 3, 2), 6))
    ours = [minidl.Tensor(a, requires_grad=True) for a in (x, w, b)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
    y = F.conv2d(*ours, stride, padding, dilation, groups)
    wanted = torch.nn.functional.conv2d(*theirs, stride, padding, dilation, groups)
    gy = RNG.standard_normal(y.shape)
    y.backward(gy)
    wanted.backward(torch.tensor(gy))
    # float64: sums of 24 terms up to 10 in y, of some hundred in the gradients, in another order
    np.testing.assert_allclose(y.numpy(), wanted.detach().numpy(), rtol=0, atol=1e-12)
    for a, t in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad, t.grad.numpy(), rtol=0, atol=1e-11)


def test_blocks_of_samples_equal_all_samples_at_once(monkeypatch):
    x, w, b = image(5, 4, 6, 7), image(6, 2, 3, 3), image(6)
    found = []
    for columns in (2**30, 2 * 4 * 9 * 4 * 5, 1):  # all samples; about two; one
        monkeypatch.setattr(conv_columns, "CPU_COLUMNS", columns)
        x.grad = w.grad = b.grad = None
        y = F.conv2d(x, w, b, groups=2)
        y.backward(np.cos(np.arange(y.numel())).reshape(y.shape))
        found.append([y.numpy(), x.grad, w.grad, b.grad])
    for pieces in found[1:]:
        for got, wanted in zip(pieces, found[0], strict=True):
            # float64 sums of 100 terms up to 3, in another order
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)


def test_columns_are_not_kept():
    x, w = image(2, 4, 8, 8) * 1.0, image(3, 4, 3, 3)
    y = F.conv2d(x, w)
    assert minidl.memory.saved_bytes(y) == x.nbytes  # and w is a leaf


def test_first_of_equals_gets_the_gradient_of_max_pool():
    x = minidl.Tensor(np.ones((1, 1, 2, 4)), requires_grad=True)
    F.max_pool2d(x, 2).sum().backward()
    np.testing.assert_array_equal(x.grad[0, 0], [[1, 0, 1, 0], [0, 0, 0, 0]])


def test_padding_never_wins_max_pool():
    x = minidl.Tensor(np.full((1, 1, 3, 3), -2.0), requires_grad=True)
    y = F.max_pool2d(x, 3, stride=1, padding=1)
    y.sum().backward()
    assert (y.numpy() == -2).all() and x.grad.array.sum() == 9


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("kernel, stride, padding", [
    (2, 2, 0), (3, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 1), (4, 5, 2), (1, 2, 0)])
def test_the_last_window_of_ceil_mode_starts_inside(size, kernel, stride, padding):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = RNG.standard_normal((1, 1, size, size + 1))
    if size + 2 * padding + stride - 1 < kernel:
        with pytest.raises(ValueError, match="does not fit"):
            F.max_pool2d(minidl.Tensor(x), kernel, stride, padding, ceil_mode=True)
        return
    for ours, theirs in ((F.max_pool2d, torch.nn.functional.max_pool2d),
                         (F.avg_pool2d, torch.nn.functional.avg_pool2d)):
        got = ours(minidl.Tensor(x), kernel, stride, padding, ceil_mode=True).numpy()
        wanted = theirs(torch.tensor(x), kernel, stride, padding, ceil_mode=True).numpy()
        np.testing.assert_allclose(got, wanted, rtol=1e-14, atol=1e-14)


def test_modules_hand_ceil_mode_on():
    x = image(1, 1, 5, 5)
    for module in (minidl.nn.MaxPool2d, minidl.nn.AvgPool2d):
        assert module(2)(x).shape == (1, 1, 2, 2)
        assert module(2, ceil_mode=True)(x).shape == (1, 1, 3, 3)


def test_max_pool_saves_one_byte_an_output():
    y = F.max_pool2d(image(2, 3, 8, 8), 2)
    assert minidl.memory.saved_bytes(y) == y.numel()


def test_conv_errors_name_op_and_shapes():
    x, w = image(2, 4, 5, 5), image(6, 2, 3, 3)
    for kwargs, message in [
        ({}, r"conv2d: input \(2, 4, 5, 5\), weight \(6, 2, 3, 3\), groups 1; want 2 input"),
        ({"groups": 4}, r"want 8 input channels \(weight"),
        ({"groups": 2, "dilation": 3}, "size 3 with dilation 3 does not fit into .* size 5"),
        ({"groups": 2, "padding": "same", "stride": 2}, "padding='same' wants stride 1"),
        ({"groups": 2, "padding": "full"}, "'same' or 'valid'; got 'full'"),
        ({"groups": 2, "stride": (1, 2, 3)}, "stride must be an int or two ints"),
        ({"groups": 2, "stride": 0}, "must be at least 1"),
        ({"groups": 2, "bias": image(5)}, r"bias must .*\(6,\).*got \(5,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            F.conv2d(x, w, **kwargs)
    with pytest.raises(ValueError, match=r"conv1d: .*want an input of shape \(N, C, L\)"):
        F.conv1d(x, w)


@pytest.mark.parametrize("x, w", [((2, 6, 5, 5), (6, 2, 3)), ((6, 5), (6, 2, 3, 3)),
                                  ((1, 2, 6, 5, 5), (6, 2, 3, 3))])
def test_a_transposed_convolution_names_shapes_of_other_dimensions(x, w):
    with pytest.raises(ValueError, match=r"want an input \(N, C, ...\) or \(C, ...\)"):
        F.conv_transpose2d(image(*x), image(*w))


@pytest.mark.parametrize("x, size", [((1, 2, 3, 4), (0, 4)), ((1, 2, 3, 4), (3, 0)),
                                     ((1, 2, 0, 4), (3, 4))])
def test_interpolate_wants_elements_on_both_sides(x, size):
    for mode in ("nearest", "bilinear", "area"):
        with pytest.raises(ValueError, match="interpolate: all sizes must be 1 or more"):
            F.interpolate(minidl.zeros(*x), size=size, mode=mode)


def test_pool_errors():
    x = image(2, 4, 5, 5)
    with pytest.raises(ValueError, match="padding .* at most half the kernel"):
        F.avg_pool2d(x, 2, padding=2)
    with pytest.raises(ValueError, match=r"max_pool2d: .* size \(6, 6\) .* does not fit into "
                                         r"the padded image, .* \(5, 5\)"):
        F.max_pool2d(x, 6)
    with pytest.raises(ValueError, match=r"avg_pool2d: .* does not fit into .* \(5, 7\)"):
        F.avg_pool2d(x, (6, 3), 1, (0, 1), ceil_mode=True)
    with pytest.raises(ValueError, match="avg_pool2d: divisor_override must not be 0"):
        F.avg_pool2d(x, 2, divisor_override=0)
    with pytest.raises(ValueError, match=r"adaptive_avg_pool2d: input .*; got \(5, 5\)"):
        F.adaptive_avg_pool2d(image(5, 5), 1)


@pytest.mark.parametrize("kernel, dilation, left, right",
                         [(4, 1, 1, 2), (2, 3, 1, 2), (3, 1, 1, 1)])
def test_same_puts_the_odd_zero_at_the_end(kernel, dilation, left, right):
    x, w = image(1, 2, 9), image(3, 2, kernel)
    got = F.conv1d(x, w, padding="same", dilation=dilation).numpy()
    wanted = F.conv1d(F.pad(x, (left, right)), w, dilation=dilation).numpy()
    assert got.shape == (1, 3, 9)
    np.testing.assert_array_equal(got, wanted)
