"""Channels last: convolutions and poolings in a row, borders by their writers, and the way back."""

import pytest

import minidl
from minidl import infer, nn
from minidl.infer.passes import batch_norm, epilogue, layout
from minidl.nn import functional as F
from tests.infer.models import array, cnn, same

CONV = nn.Conv2d(3, 3, 3, padding=1).eval()


def run(model, *shape):
    x = minidl.tensor(array(*(shape or (2, 3, 8, 9))))
    graph = infer.trace(model, x)
    batch_norm(graph)
    epilogue(graph)
    n = layout(graph)
    same(graph.verify().run(x.array), model(x))
    return n, graph


def test_a_network_turns_its_images_once_each_way():
    n, graph = run(cnn(), 2, 3, 12, 13)
    assert n == 6 and graph.count("to_nhwc") == graph.count("to_nchw") == 1
    assert graph.count("conv2d", "max_pool2d", "avg_pool2d") == 0


def test_the_line_before_writes_the_border():
    n, graph = run(lambda x: CONV(F.max_pool2d(CONV(x), 2)))
    assert n == 3 and graph.count("pad_nhwc") == 0
    assert [bool(node.pad) for node in graph.nodes] == [True, False, True, False, False]


def test_readers_who_want_other_borders_get_copies():
    one = nn.Conv2d(3, 3, 1).eval()

    def model(x):
        y = CONV(x).relu()
        return CONV(y) + one(y)

    n, graph = run(model)
    assert n == 3 and graph.count("pad_nhwc") == 1


@pytest.mark.parametrize("model", [
    nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 2, dilation=2),
    lambda x: F.max_pool2d(x, 2), lambda x: x.relu() + x,
])
def test_what_gains_nothing_stays(model):
    model = model.eval() if hasattr(model, "eval") else model
    assert run(model, 2, 4, 8, 9)[0] == 0


def test_elementwise_lines_between_images_stay_between_them():
    def model(x):
        y = CONV(x)
        return CONV(y.exp() * y.cos().exp())

    n, graph = run(model)  # cos has no kernel: it reads the image in the old order
    assert n == 3 and graph.count("to_nhwc") == 2


def test_an_image_that_is_returned_is_turned_back():
    n, graph = run(lambda x: CONV(CONV(x)))
    assert n == 2 and [node.op for node in graph.nodes][-1] == "to_nchw"


def test_poolings_at_the_edge():
    n, _ = run(lambda x: F.max_pool2d(CONV(x), 3, stride=2, padding=1, ceil_mode=True), 2, 3, 8, 8)
    assert n == 2
    n, _ = run(lambda x: F.avg_pool2d(CONV(x), 3, stride=2, padding=1))
    assert n == 1
