"""Steps after a product: what may join it, in which order, and what may not."""

import numpy as np

import minidl
from minidl import infer, nn
from minidl.infer.passes import batch_norm, epilogue
from minidl.nn import functional as F
from tests.infer.models import array, cnn, same

W, V = minidl.tensor(array(5, 4)), minidl.tensor(array(5, seed=3))


def run(model, *shape):
    x = minidl.tensor(array(*(shape or (3, 4))))
    graph = infer.trace(model, x)
    batch_norm(graph)
    n = epilogue(graph)
    same(graph.verify().run(x.array), model(x))
    return n, [node.op for node in graph.nodes]


def test_activation_then_residual_then_number_then_vector():
    def model(x):
        other = x.sum(1, keepdim=True).expand(3, 5).exp()
        return (other - F.gelu(F.linear(x, W))) * 0.5 + V

    assert run(model) == (4, ["sum", "expand", "exp", "linear"])


def test_a_residual_that_is_made_after_the_product_is_there_in_time():
    def model(x):
        y = F.linear(x, W)
        return y + F.linear(x.exp(), W, V)  # the first product waits, or takes the second one's

    n, ops = run(model)
    assert n == 1 and sorted(ops) == ["exp", "linear", "linear"]


def test_a_product_that_others_read_keeps_its_result():
    def twice(x):
        y = F.linear(x, W)
        return y.relu() + y

    assert run(twice) == (0, ["linear", "relu", "add"])
    assert run(lambda x: F.linear(x, W) * F.linear(x, W)) == (1, ["linear", "linear"])
    returned = infer.trace(lambda x: (F.linear(x, W), F.linear(x, W).relu()),
                           minidl.tensor(array(3, 4)))
    assert epilogue(returned) == 1


def test_an_operand_that_is_broadcast_otherwise_stays_outside():
    column = minidl.tensor(array(3, 1))
    assert run(lambda x: F.linear(x, W) + column) == (0, ["linear", "add"])
    wider = minidl.tensor(array(2, 3, 5))
    assert run(lambda x: F.linear(x, W) + wider) == (0, ["linear", "add"])


def test_what_has_no_kernel_stays_outside():
    assert run(lambda x: F.linear(x, W).cos()) == (0, ["linear", "cos"])
    assert run(lambda x: F.linear(x, W) * float(np.inf)) == (0, ["linear", "mul"])


def test_a_convolutions_steps():
    n, ops = run(cnn(), 2, 3, 12, 13)
    assert n == 4 and ops.count("relu") == ops.count("gelu") == ops.count("add") == 0


def test_a_vector_of_channels_joins_a_convolution_and_a_row_does_not():
    conv = nn.Conv2d(3, 4, 1).eval()
    channels, row = minidl.tensor(array(4, 1, 1)), minidl.tensor(array(4))
    assert run(lambda x: conv(x) * channels, 2, 3, 4, 4) == (1, ["conv2d"])
    assert run(lambda x: conv(x) * row, 2, 3, 4, 4) == (0, ["conv2d", "mul"])
