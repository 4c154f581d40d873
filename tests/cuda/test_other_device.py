"""Arrays on a GPU that is not the current one: ops run where they lie, forward and backward."""

import numpy as np
import pytest

import minidl
from minidl import nn
from minidl.nn import functional as F
from tests.devices import host


@pytest.fixture
def second_device():
    from minidl import cuda

    if cuda.device_count() < 2:
        pytest.skip("it needs a second GPU")
    yield
    assert cuda.current_device() == 0


def on(device, *shape, seed=0):
    x = np.random.default_rng(seed).standard_normal(shape).astype("f4")
    return minidl.Tensor(x).to(device).requires_grad_(True)


def places(*tensors):
    return {str(t.device) for t in tensors}


def results(device):
    """(outputs and gradients) of a model with kernels, indices, products, views and scalars."""
    minidl.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8))
    model = model.to(device)
    x = on(device, 6, 8)
    y = F.softmax(model(x), -1)
    picked = y[minidl.Tensor(np.array([0, -1, 2])).to(device)]
    loss = picked.sum() + (y * y).mean() + y.split(3)[1].max()
    loss.backward()
    gradients = [x.grad, *(p.grad for p in model.parameters())]
    assert places(x, y, picked, loss, *model.parameters()) == {device}
    assert {g.device for g in gradients} == {device}
    return [host(y), host(loss), *map(host, gradients)]


@pytest.mark.gpu
@pytest.mark.usefixtures("second_device")
def test_ops_run_where_their_arrays_lie():
    for a, b in zip(results("cuda:1"), results("cpu"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # other orders of sums


@pytest.mark.gpu
@pytest.mark.usefixtures("second_device")
def test_a_graph_over_two_devices():
    x = on("cuda:1", 4, 4)
    y = (x * x).to("cuda:0")
    z = (y + y).sum()
    assert places(x) == {"cuda:1"} and places(y, z) == {"cuda:0"}
    z.backward()
    assert x.grad.device == "cuda:1"
    np.testing.assert_allclose(host(x.grad), 4 * host(x), rtol=1e-6)


@pytest.mark.gpu
@pytest.mark.usefixtures("second_device")
def test_arrays_on_two_gpus_are_refused():
    with pytest.raises(ValueError, match=r"add: got arrays on several GPUs, \[0, 1\]; move them"):
        on("cuda:0", 3) + on("cuda:1", 3)


@pytest.mark.gpu
@pytest.mark.usefixtures("second_device")
def test_an_index_out_of_range_on_the_second_gpu_is_found():
    x = on("cuda:1", 5)
    y = x[minidl.Tensor(np.array([1, 5])).to("cuda:1")]
    with pytest.raises(IndexError, match="wanted indices from -5 to 4; got 5"):
        y.tolist()


def test_on_the_stand_in(strict_cupy):
    x = on("cuda:1", 4, 4)
    y = (x * x + x).sum()
    y.backward()
    assert places(x, y) == {"cuda:1"} and x.grad.device == "cuda:1"
    np.testing.assert_allclose(host(x.grad), 2 * host(x) + 1, rtol=1e-6)
