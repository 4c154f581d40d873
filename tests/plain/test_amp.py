"""The page and the real scaler with master weights: the same scales and the same bits."""

import numpy as np
import pytest

import minidl
from minidl.optim.master import use_master_weights
from minidl.plain import amp
from minidl.precision.amp import GradScaler

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
