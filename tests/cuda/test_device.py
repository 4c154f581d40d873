"""minidl/cuda/device.py: PyTorch's names for which GPU is used; and what "cuda" means."""

import sys
import types

import numpy as np
import pytest

import minidl
from minidl import cuda, nn
from minidl.cuda import device


def test_without_a_gpu_there_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # import cupy: ImportError
    assert not cuda.is_available() and cuda.device_count() == 0
    with pytest.raises(ValueError, match="set_device: there is no GPU 0; CuPy finds 0"):
        cuda.set_device(0)
    with pytest.raises(ImportError, match="cuda12"):
        cuda.synchronize()


@pytest.mark.gpu
def test_cuda_is_the_current_device():
    assert cuda.is_available() and cuda.device_count() > 0
    last = cuda.device_count() - 1
    try:
        cuda.set_device(last)
        assert cuda.current_device() == last
        assert minidl.ones(3, device="cuda").device == f"cuda:{last}"
        assert minidl.randn(3, device="cuda").cuda().device == f"cuda:{last}"
        model = nn.Linear(2, 2).cuda()
        assert {p.device for p in model.parameters()} == {f"cuda:{last}"}
        cuda.set_device("cuda:0")
        assert minidl.ones(3, device="cuda").device == "cuda:0"
        assert model.cuda(0).weight.device == model.to("cuda").weight.device == "cuda:0"
        assert model.cpu().weight.device == "cpu"
    finally:
        cuda.set_device(0)
    with pytest.raises(ValueError, match="there is no GPU 99"):
        cuda.set_device(99)


@pytest.mark.gpu
def test_a_tensor_moves_to_the_gpu_and_its_gradient_back():
    x = minidl.tensor(np.arange(6, dtype="f4").reshape(2, 3), requires_grad=True)
    y = x.cuda()
    assert y.device == "cuda:0" and y.cuda() is y and y.to("cuda:0") is y
    z = (y * y).cpu()
    assert z.device == "cpu" and type(z.array) is np.ndarray
    z.sum().backward()
    np.testing.assert_array_equal(x.grad, 2 * x.array)
    w = minidl.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    (w.to("cpu") * 3).sum().backward()
    assert w.grad.device == "cuda:0" and w.grad.array.get().tolist() == [3, 3]
    moved = nn.Linear(3, 2).to("cuda", "float16")
    assert moved.weight.device == "cuda:0" and moved.weight.dtype == np.float16


@pytest.mark.gpu
def test_memory_is_counted():
    before = cuda.memory_allocated()
    x = minidl.zeros(1000, 1000, device="cuda")
    assert cuda.memory_allocated() - before >= x.nbytes
    assert cuda.memory_reserved() >= cuda.memory_allocated()
    cuda.synchronize()


def test_tf32_is_a_switch_of_cupys(monkeypatch):
    modes = types.ModuleType("cupy._core._routines_linalg")
    modes.COMPUTE_TYPE_DEFAULT, modes.COMPUTE_TYPE_TF32, found = 1, 7, {}
    modes.set_compute_type = lambda dtype, mode: found.__setitem__(np.dtype(dtype), mode)
    modes.get_compute_type = lambda dtype: found.get(np.dtype(dtype), 1)
    monkeypatch.setattr(device, "is_available", lambda: True)
    monkeypatch.setattr(device, "_winograd", True)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.setitem(sys.modules, "cupy._core", types.ModuleType("cupy._core"))
    monkeypatch.setitem(sys.modules, "cupy._core._routines_linalg", modes)
    assert minidl.get_float32_matmul_precision() == "highest"
    minidl.set_float32_matmul_precision("high")
    assert found == {np.dtype("f4"): 7} and minidl.get_float32_matmul_precision() == "high"
    minidl.set_float32_matmul_precision("highest")
    assert found == {np.dtype("f4"): 1}
    with pytest.raises(ValueError, match="'highest' or 'high', got 'medium'"):
        minidl.set_float32_matmul_precision("medium")
    monkeypatch.setitem(sys.modules, "cupy._core._routines_linalg", None)
    with pytest.raises(NotImplementedError, match="CUPY_TF32=1"):
        minidl.set_float32_matmul_precision("high")
