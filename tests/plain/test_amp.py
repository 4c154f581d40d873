"""The page and the real scaler with master weights: the same scales and the same bits."""

import numpy as np
import pytest

import minidl
from minidl.nn import functional as F
from minidl.optim.master import use_master_weights
from minidl.plain import amp
from minidl.precision.amp import GradScaler, autocast

START = [np.float32([0.3, -1.7, 2.5]), np.float32([[1.0, 3.0]])]
TARGETS = [np.float32([1.1, 0.4, -0.6]), np.float32([[-2.0, 0.5]])]


def gradients(weights, scale):
    """Of scale * the sum of (w - target)^2 * size / 2. Large scales overflow, some steps later."""
    with np.errstate(over="ignore"):
        return [((w.astype(np.float32) - t) * np.float32(scale)).astype(np.float16)
                for w, t in zip(weights, TARGETS)]


@pytest.mark.parametrize("start", [2.0**18, 2.0**3])
def test_scales_and_masters_have_the_bits_of_the_real_ones(start):
    lr, interval = 2.0**-4, 3  # a power of two: the product with it rounds nothing
    masters, scale, good_steps = [w.copy() for w in START], start, 0
    low = [minidl.tensor(w.astype(np.float16), requires_grad=True) for w in START]
    # the real masters begin as the rounded weights
    masters = [w.astype(np.float16).astype(np.float32) for w in masters]
    optimizer = use_master_weights(minidl.optim.SGD(low, lr=lr))
    scaler = GradScaler(init_scale=start, growth_interval=interval)
    scales = []
    for _ in range(60):
        arrays = [p.detach().numpy() for p in low]
        for p, g in zip(low, gradients(arrays, scaler.get_scale())):
            p.grad = minidl.tensor(g)
        scaler.step(optimizer)
        scaler.update()
        scale, good_steps = amp.step(masters, gradients, lr, scale, good_steps, interval)
        scales.append(scale)
        assert scale == scaler.get_scale()
        for ours, master in zip(masters, optimizer.parameters()):
            np.testing.assert_array_equal(ours, master.detach().numpy())
    steps = [b / a for a, b in zip(scales, scales[1:])]
    assert {0.5, 1, 2} <= set(steps)  # it overflowed, and it grew


def test_without_masters_nothing_moves():
    """A negative control: the update is below half a unit in the last place of the float16."""
    def small(weights, scale):
        return [np.float16([2.0**-3 * scale])]

    masters = [np.float32([1.0])]
    half = np.float16(1.0)
    for _ in range(8):
        amp.step(masters, small, 2.0**-10, 4.0, 0, 100)
        half = half - np.float16(2.0**-13)
    assert half == 1 and masters[0][0] == 1 - 8 * 2.0**-13


@pytest.mark.parametrize("samples, features, classes", [(1, 1, 1), (5, 7, 3)])
def test_the_loss_of_o1_is_that_of_autocast(samples, features, classes):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(samples, features)).astype("f4")
    w = rng.normal(size=(features, classes)).astype("f4")
    targets = rng.integers(0, classes, samples)
    loss = amp.loss_o1(w, x, targets)
    with autocast(dtype=np.float16):
        want = F.cross_entropy(minidl.tensor(x) @ minidl.tensor(w), minidl.tensor(targets))
    assert loss.dtype == np.float32 == want.dtype
    # each of the scores, of size 1 to 8, may be rounded to the next float16: 2^-8
    assert loss == pytest.approx(want.item(), abs=2**-8)
    exact = np.log(np.exp(x @ w).sum(1)) - (x @ w)[np.arange(samples), targets]
    if classes > 1:  # the product was rounded, and no more than that
        assert 1e-6 < abs(loss - exact.mean()) < 2**-7
