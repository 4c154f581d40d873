"""The nets of bench_conv.py: their operations are counted right, and a step of them trains."""

import sys

import numpy as np
import pytest

import minidl
from benchmarks.cluster import ROOT
from minidl.nn import functional as F

FOLDER = ROOT / "benchmarks"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))  # where a benchmark finds its neighbours

import bench_conv  # noqa: E402
import conv_nets  # noqa: E402


@pytest.mark.parametrize("size, kernel, stride, padding", [
    (5, 3, 1, 1), (8, 3, 2, 1), (7, 1, 2, 0), (4, 4, 1, 3), (6, 3, 3, 0)])
def test_products_with_padding_do_not_count(size, kernel, stride, padding):
    # ones convolved with ones: each place of the result counts its products with the image
    x, w = minidl.ones(1, 1, 1, size), minidl.ones(1, 1, 1, kernel)
    y = F.conv2d(x, w, stride=(1, stride), padding=(0, padding))
    counted = conv_nets.products_inside(size, y.shape[-1], kernel, stride, padding)
    assert counted == y.sum().item()


def test_operations_of_a_small_net():
    nn = minidl.nn
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.ConvTranspose2d(4, 3, 2, 2),
                          nn.Flatten(), nn.Linear(3 * 8 * 8, 5))
    conv = 4 * 1 * (4 * 3 - 2) ** 2  # output channels, input channels of a group, products
    transposed, linear = 4 * 3 * 4**2 * 2**2, 3 * 8 * 8 * 5
    forward, backward = conv_nets.operations(minidl, model, minidl.ones(7, 2, 4, 4))
    assert forward == 2 * 7 * (conv + transposed + linear)
    assert backward == 2 * 7 * (conv + 2 * transposed + 2 * linear)  # nobody wants x's gradient


def test_a_step_trains():
    minidl.manual_seed(0)
    net = conv_nets.TINY
    step = conv_nets.step_of(minidl, net.make(minidl), *net.batch())
    losses = [step() for _ in range(20)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.parametrize("name", conv_nets.NETS)
def test_a_net_fits_its_batch(name):
    net = conv_nets.NETS[name]
    small = net._replace(shape=(2, *net.shape[1:]), target=net.target and (2, *net.target[1:]))
    x, y = small.batch()
    with minidl.no_grad():
        result = net.make(minidl)(minidl.tensor(x))
    assert tuple(result.shape) == ((2, net.n_classes) if net.n_classes else y.shape)


def test_every_bar_is_in_a_row_and_the_mean_is_geometric():
    times = {bench_conv.OURS: [2.0, 1.0], bench_conv.TORCH: [1.0, 1.0], "peak": [0.5, 0.5]}
    slow = {"operations": 10**9, "peak": 10**9, "times_s": times}
    fast = {**slow, "times_s": times | {bench_conv.OURS: [1 / 3, 1 / 3]}}
    rows = {"step: U-Net": slow, "layer: 64 channels": fast}
    assert bench_conv.mean_ratio(rows) == pytest.approx((1.5 / 3) ** 0.5)
    memory = {"step: U-Net": {bench_conv.OURS: 2, bench_conv.TORCH: 1}}
    bars, lines = bench_conv.report({"times": {"1 thread": rows, "2 threads": rows},
                                     "memory": memory})
    names = [b["what"] for b in bars]
    assert names == [name for line in lines for name in line["bars"]]
    assert len(set(names)) == 2 * 3 + 1
    assert [b["met"] for b in bars] == [False, True, True] * 2 + [False]
