"""Batch norm folds into the product before it: the same numbers, and only where it may."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.infer.passes import batch_norm
from tests.infer.models import array, cnn, same


def test_the_convolutions_compute_the_same_and_the_norms_are_gone():
    net, x = cnn(), array(4, 3, 12, 13)
    graph = infer.trace(net, minidl.tensor(x))
    assert batch_norm(graph) == 2 and graph.count("batch_norm") == 0
    same(graph.verify().run(x), net(minidl.tensor(x)))


@pytest.mark.parametrize("affine, bias", [(False, True), (True, False)])
def test_a_linear_layer_with_and_without_what_may_be_missing(affine, bias):
    minidl.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3, bias=bias), nn.BatchNorm1d(3, affine=affine))
    net(minidl.tensor(array(32, 4, seed=1)))
    x = array(5, 4)
    graph = infer.trace(net.eval(), minidl.tensor(x))
    assert batch_norm(graph) == 1
    same(graph.run(x), net(minidl.tensor(x)))


def test_weights_are_rounded_once():
    """In float64 and rounded at the end: nearer than the same in float32 on the whole."""
    minidl.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 64, 3, bias=False), nn.BatchNorm2d(64))
    net(minidl.tensor(array(4, 8, 9, 9)))
    w, norm = net[0].weight.array, net[1]
    graph = infer.trace(net.eval(), array(1, 8, 5, 5))
    batch_norm(graph)
    exact = w.astype(np.float64) * (norm.weight.array / np.sqrt(
        np.asarray(norm.running_var, np.float64) + norm.eps))[:, None, None, None]
    np.testing.assert_array_equal(graph.nodes[0].inputs[1].array, exact.astype(np.float32))


def test_a_product_that_others_read_stays():
    conv, norm = nn.Conv2d(3, 4, 1).eval(), nn.BatchNorm2d(4).eval()

    def model(x):
        y = conv(x)
        return norm(y) + y

    assert batch_norm(infer.trace(model, minidl.tensor(array(1, 3, 4, 4)))) == 0


def test_channels_that_are_not_the_layers_outputs_stay():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(3)).eval()  # (N, 3 channels, 6)
    assert batch_norm(infer.trace(net, array(2, 3, 4))) == 0
