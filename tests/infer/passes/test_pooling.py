"""A 2 x 2 pooling becomes the convolution's last step: rows by rows and by Winograd's tiles, where
the image's size is odd, with steps between and a border after; what may not join stays."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.nn import functional as F
from tests.conftest import EVERY
from tests.infer.models import array
from tests.infer.test_lower import compiled, eager_lines

SIZES = [(28, 28), (7, 6), (6, 7), (3, 3), (2, 2)]


def traced(model, *shape):
    graph = infer.trace(model, minidl.tensor(array(*shape)))
    infer.optimise(graph)
    return graph


@pytest.mark.parametrize("h, w", SIZES if EVERY else SIZES[1:3])
@pytest.mark.parametrize("c, o", [(1, 3), (3, 40), (16, 16), (32, 70)] if EVERY else [
    (3, 40), (16, 16)])
@pytest.mark.parametrize("border", [False, True])
def test_a_pooled_convolution(c, o, h, w, border):
    minidl.manual_seed(0)
    after = [nn.Conv2d(o, 2, 3, padding=1)] if border else []
    model = nn.Sequential(nn.Conv2d(c, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(),
                          nn.MaxPool2d(2), *after).eval()
    plan = compiled(model, minidl.tensor(array(2, c, h, w)))
    assert len(plan.launches) == 2 + border and not eager_lines(plan)


@pytest.mark.parametrize("c, o", [(3, 40), (16, 16)])
def test_nothing_is_written_beyond_the_last_window(c, o):
    """Where it would go is written again, by the same thread later or by another at any time: no
    number shows it, so the generated text is read."""
    model = nn.Sequential(nn.Conv2d(c, o, 3, padding=1), nn.MaxPool2d(2)).eval()
    odd = infer.compile(traced(model, 1, c, 7, 9)).source("conv_nhwc_1")
    assert "if (h < 6 && pixel < 8) *kept = " in odd
    assert "if (h" not in infer.compile(traced(model, 1, c, 6, 8)).source("conv_nhwc_1")


def test_strides_and_steps_of_two_images():
    minidl.manual_seed(0)
    conv = nn.Conv2d(3, 8, 3, stride=2).eval()
    graph = traced(lambda x: F.max_pool2d((conv(x) + conv(x * 0.5)).tanh(), 2), 2, 3, 15, 17)
    assert "then add(., %2) then tanh(.) then max_pool_nhwc(.)" in str(graph)
    compiled(lambda x: F.max_pool2d((conv(x) + conv(x * 0.5)).tanh(), 2),
             minidl.tensor(array(2, 3, 15, 17)))


def test_nan_is_the_largest():
    """As of PyTorch's pooling. Winograd's tiles spread it over the pixels of its tile."""
    conv = nn.Conv2d(1, 16, 1).eval()
    x = array(1, 1, 4, 4)
    x[0, 0, 3, 2] = np.nan
    graph = traced(lambda x: F.max_pool2d(conv(x), 2), 1, 1, 4, 4)
    y = infer.compile(graph)(minidl.tensor(x)).numpy()
    assert np.isnan(y[..., 1, 1]).all() and np.isnan(y).sum() == 16


@pytest.mark.parametrize("model", [
    lambda y: F.max_pool2d(y, 3), lambda y: F.max_pool2d(y, 2, stride=1),
    lambda y: F.max_pool2d(y, 2, padding=1), lambda y: F.avg_pool2d(y, 2),
    lambda y: F.max_pool2d(y, 2, ceil_mode=True), lambda y: (F.max_pool2d(y, 2), y),
    lambda y: F.max_pool2d(y, 2).mean() + F.max_pool2d(y, 2, stride=1).mean(),
])
def test_other_poolings_stay(model):
    conv = nn.Conv2d(3, 4, 3).eval()
    assert "then max_pool" not in str(traced(lambda x: model(conv(x)), 2, 3, 9, 9))
