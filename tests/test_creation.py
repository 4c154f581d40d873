"""Tests functions that make tensors: dtypes, shared memory or a copy, shapes, seeds."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import minidl
from minidl import Generator

try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")

SAME_CALL_SAME_RESULT = [
    lambda m: m.tensor([1.0, 2.0]), lambda m: m.tensor([1, 2]), lambda m: m.tensor([True, False]),
    lambda m: m.tensor(2.5), lambda m: m.tensor(3), lambda m: m.tensor([[1, 2.5], [3, 4]]),
    lambda m: m.tensor([]), lambda m: m.tensor([1, 2], dtype=m.float64),
    lambda m: m.tensor(np.arange(3)), lambda m: m.tensor(np.ones(2)),
    lambda m: m.tensor(np.float64(2)), lambda m: m.as_tensor([1.5]),
    lambda m: m.zeros(2, 3), lambda m: m.zeros((2, 3), dtype=m.int64), lambda m: m.zeros(()),
    lambda m: m.ones(0, 2), lambda m: m.full((2,), 3), lambda m: m.full((2,), 3.5),
    lambda m: m.full((), True), lambda m: m.arange(4), lambda m: m.arange(1, 4),
    lambda m: m.arange(0, 1, 0.25), lambda m: m.arange(5, 0, -2), lambda m: m.arange(3.0),
    lambda m: m.arange(3, dtype=m.float16), lambda m: m.arange(0), lambda m: m.linspace(0, 1, 5),
    lambda m: m.linspace(3, -3, 1), lambda m: m.eye(3), lambda m: m.eye(2, 3, dtype=m.float64),
    lambda m: m.zeros_like(m.arange(3)), lambda m: m.ones_like(m.zeros(2, 1), dtype=m.int32),
    lambda m: m.full_like(m.zeros(2), 7),
]


@needs_torch
@pytest.mark.parametrize("make", SAME_CALL_SAME_RESULT)
def test_the_same_call_gives_torch_s_tensor(make):
    ours, theirs = make(minidl), make(torch)
    assert f"torch.{ours.dtype}" == str(theirs.dtype)
    assert ours.shape == tuple(theirs.shape)
    # linspace rounds its steps, in minidl to float64 and in PyTorch to float32
    np.testing.assert_allclose(ours.array, theirs.numpy(), rtol=2e-7)


def test_tensor_copies_as_tensor_and_from_numpy_share():
    a = np.zeros(3)
    assert not np.shares_memory(minidl.tensor(a).array, a)
    assert not np.shares_memory(minidl.tensor(minidl.Tensor(a)).array, a)
    assert minidl.as_tensor(a).array is a and minidl.from_numpy(a).array is a
    x = minidl.ones(2)
    assert minidl.as_tensor(x) is x
    assert minidl.as_tensor(a, dtype=np.float32).dtype == np.float32
    with pytest.raises(TypeError, match="wants a NumPy array, got list"):
        minidl.from_numpy([1.0])
    with pytest.raises(ValueError):
        minidl.tensor([[1, 2], [3]])


def test_linspace_of_truth_values_is_refused():
    with pytest.raises(TypeError, match="linspace: wants a dtype of numbers, got bool"):
        minidl.linspace(0, 1, 5, dtype=bool)


@needs_torch
def test_from_dlpack_shares_the_memory_of_another_library_s_tensor():
    theirs = torch.zeros(2, 3)
    ours = minidl.from_dlpack(theirs)
    theirs[1, 2] = 5
    assert ours.tolist() == [[0, 0, 0], [0, 0, 5]]


@pytest.mark.parametrize("kind", [2, 13])  # kDLCUDA, kDLCUDAManaged
def test_from_dlpack_gives_device_memory_to_cupy(strict_cupy, monkeypatch, kind):
    theirs = SimpleNamespace(__dlpack_device__=lambda: (kind, 0))
    array, given = strict_cupy.arange(3), []
    monkeypatch.setattr(strict_cupy, "from_dlpack", lambda source: given.append(source) or array)
    assert minidl.from_dlpack(theirs).array is array and given == [theirs]


def test_from_dlpack_names_the_remedy_where_cupy_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ImportError, match=r"cupy is not installed. Run pip .* 'minidl\[cuda12\]'"):
        minidl.from_dlpack(SimpleNamespace(__dlpack_device__=lambda: (2, 0)))


def test_tensors_inside_lists():
    assert minidl.tensor([minidl.tensor(1.0), minidl.tensor(2.0)]).tolist() == [1, 2]


def test_requires_grad_makes_a_leaf():
    for x in (minidl.tensor([1.0], requires_grad=True), minidl.zeros(2, requires_grad=True),
              minidl.randn(2, requires_grad=True), minidl.ones_like(minidl.zeros(2),
                                                                    requires_grad=True)):
        assert x.requires_grad and x.is_leaf
    with pytest.raises(TypeError, match="floating"):
        minidl.tensor([1], requires_grad=True)


@pytest.mark.parametrize("draw", [
    lambda g: minidl.rand(3, 4, generator=g), lambda g: minidl.randn((3, 4), generator=g),
    lambda g: minidl.randint(0, 9, (3, 4), generator=g), lambda g: minidl.randperm(12, generator=g),
    lambda g: minidl.rand_like(minidl.zeros(3, 4), generator=g),
    lambda g: minidl.randn_like(minidl.zeros(3, 4), generator=g),
])
def test_random_tensors_replay_from_their_generator(draw):
    first, again, other = draw(Generator(1)), draw(Generator(1)), draw(Generator(2))
    assert first.tolist() == again.tolist() != other.tolist()
    assert first.numel() == 12
    minidl.manual_seed(1)
    assert draw(None).tolist() == first.tolist()


def test_random_dtypes_and_ranges():
    g = Generator(0)
    assert minidl.rand(2, generator=g).dtype == np.float32
    assert minidl.randn(2, dtype=np.float64, generator=g).dtype == np.float64
    k = minidl.randint(5, (1000,), generator=g)
    assert k.dtype == np.int64 and set(k.tolist()) == {0, 1, 2, 3, 4}
    assert sorted(minidl.randperm(5, generator=g).tolist()) == [0, 1, 2, 3, 4]


def test_empty_like_has_shape_and_dtype():
    x = minidl.empty_like(minidl.zeros(2, 3, dtype=np.float16))
    assert x.shape == (2, 3) and x.dtype == np.float16
    assert minidl.empty(4, 0).shape == (4, 0)
