"""Tracing: what a plan could not repeat is refused, with its name."""

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.nn import functional as F
from tests.infer.models import array, same


def test_parameters_and_buffers_keep_their_names():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    graph = infer.trace(net, array(5, 4))
    assert [v.name for node in graph.nodes for v in node.values if v.name] == [
        "x", "0.weight", "0.bias", "1.weight", "1.bias"]


def test_several_inputs_and_results():
    graph = infer.trace(lambda a, b: (a + b, a * b), *map(minidl.tensor, (array(3), array(2, 3))))
    assert [v.name for v in graph.inputs] == ["x0", "x1"]
    first, second = graph.run(array(3), array(2, 3))
    same(first, array(3) + array(2, 3))
    same(second, array(3) * array(2, 3))


def refused(model, *inputs, match):
    with pytest.raises(ValueError, match=match):
        infer.trace(model, *(inputs or [minidl.tensor(array(4, 4))]))


def test_an_if_that_depends_on_numbers_is_refused():
    x = minidl.tensor(np.arange(16, dtype=np.float32).reshape(4, 4))
    refused(lambda x: x.exp() if x.array[0, 0] == 0 else x.tanh(), x, match="second input")
    refused(lambda x: x.exp().tanh() if x.array[0, 0] == 0 else x.exp(), x, match="an `if`")


def test_a_number_that_is_read_out_is_refused():
    refused(lambda x: x * float(x.array[0, 0]), match="depends on the input in a way")


def test_numpy_on_the_data_is_refused():
    refused(lambda x: x + minidl.Tensor(np.tanh(x.array)), match="depends on the input in a way")


def test_a_write_in_place_is_refused():
    def model(x):
        y = x.exp()
        y += 1.0
        return y * 2.0

    refused(model, match="in place")


def test_training_mode_and_random_numbers_are_refused():
    refused(nn.Sequential(nn.Linear(4, 4)), match="training mode")
    refused(lambda x: F.dropout(x, 0.5, training=True), match="random numbers")


def test_autocast_is_refused():
    with minidl.amp.autocast(), pytest.raises(ValueError, match="autocast"):
        infer.trace(lambda x: x, minidl.tensor(array(2)))


def test_a_model_that_returns_no_tensors_is_refused():
    with pytest.raises(TypeError, match="want a Tensor"):
        infer.trace(lambda x: {"y": x}, minidl.tensor(array(2)))


def test_tracing_leaves_the_input_alone():
    x = minidl.tensor(array(3))
    infer.trace(lambda x: x * 2.0, x)
    np.testing.assert_array_equal(x.array, array(3))
