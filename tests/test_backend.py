"""Tests that dtypes are promoted as in PyTorch. Also tests devices, and the dtypes of sums."""

import itertools

import numpy as np
import pytest

import minidl
from minidl import backend

DTYPES = ["?", "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
try:
    import torch
except ImportError:
    torch = None
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")


def of(dtype, ndim):
    return np.ones((2,) * ndim, dtype)


@needs_torch
@pytest.mark.parametrize("ndims", [(1, 1), (1, 0), (0, 1), (0, 0)])
def test_two_arrays_promote_as_in_torch(ndims):
    for a, b in itertools.product(DTYPES, DTYPES):
        x, y = of(a, ndims[0]), of(b, ndims[1])
        wanted = torch.result_type(torch.tensor(x), torch.tensor(y))
        got = (minidl.Tensor(x) * minidl.Tensor(y)).dtype
        assert str(wanted) == f"torch.{got}", (a, b)
        assert backend.result_dtype([x, y]) == got


@needs_torch
@pytest.mark.parametrize("ndim", [0, 1])
@pytest.mark.parametrize("number", [True, 2, 2.5])
def test_an_array_and_a_number_promote_as_in_torch(ndim, number):
    for a in DTYPES:
        x = of(a, ndim)
        wanted = torch.tensor(x) * number
        for got in (minidl.Tensor(x) * number, number * minidl.Tensor(x)):
            assert str(wanted.dtype) == f"torch.{got.dtype}", a
            assert got.tolist() == wanted.tolist()


@needs_torch
@pytest.mark.parametrize("name", ["exp", "sqrt", "sigmoid", "sum", "cumsum", "prod", "argmax"])
def test_one_array_gives_torch_s_dtype(name):
    for a in DTYPES:
        if name == "argmax" and a == "?":
            continue  # PyTorch has no argmax of bool
        args = (0,) if name == "cumsum" else ()
        wanted = getattr(torch.tensor(of(a, 1)), name)(*args)
        got = getattr(minidl.Tensor(of(a, 1)), name)(*args)
        assert str(wanted.dtype) == f"torch.{got.dtype}", a


def test_promotion_without_torch():
    # int64 with float16 gives float16 (NumPy alone gives float64). The dtype of a 0-d array counts
    # only if its kind is higher, as float is higher than int
    p = backend.promote_types
    assert [p("i8", "f2"), p("?", "u1"), p("u1", "i1"), p("f2", "f8")] == ["f2", "u1", "i2", "f8"]
    r = backend.result_dtype
    assert r([of("f4", 1), of("f8", 0)]) == "f4"
    assert r([of("i4", 1), of("f8", 0)]) == "f8"
    assert r([of("i4", 1), 2.5]) == "f4" and r([of("f2", 1), 2.5]) == "f2"
    with pytest.raises(TypeError, match="got str"):
        r([of("f4", 1), "x"])


def test_promote_leaves_operands_alone_where_nothing_is_to_be_done():
    a, b = of("f4", 2), of("f4", 1)
    operands = [a, b, 2.0, 3]
    assert backend.promote(operands) is operands
    x, y = backend.promote([of("i4", 1), 2.5])
    assert x.dtype == np.float32 and y == 2.5


def test_division_of_integers_is_float32():
    assert (minidl.arange(3) / 2).dtype == np.float32
    assert (minidl.arange(3) / minidl.arange(1, 4)).dtype == np.float32


def test_fp16_accumulates_in_fp32():
    assert backend.accumulate_dtype("f2") == "f4" and backend.accumulate_dtype("f8") == "f8"
    ones = minidl.ones(4096, 2, dtype=np.float16)  # in fp16 a running sum of ones stops at 2048
    assert ones.sum(0).tolist() == [4096, 4096] and ones.sum().dtype == np.float16
    assert ones.mean(0).tolist() == [1, 1] and ones.var(0).tolist() == [0, 0]
    assert ones.cumsum(0)[-1].tolist() == [4096, 4096]
    assert (40_000 * ones[:2]).mean().item() == 40_000  # in fp16 the sum is inf


def test_devices_without_a_gpu():
    x = np.ones(2)
    assert backend.device_of(x) == "cpu" and backend.to_device(x, "cpu") is x
    assert backend.xp_of([x, 2.0, None]) is np
    for wrong in ("gpu", "cuda:x", "cud"):
        with pytest.raises(ValueError, match="device must be"):
            backend.to_device(x, wrong)


def test_cuda_without_cupy_names_the_remedy():
    try:
        import cupy  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match=r"minidl\[cuda12\]"):
            minidl.ones(2).cuda()
    else:
        pytest.skip("CuPy is installed")


@pytest.mark.gpu
def test_mixed_devices_are_refused():
    a = minidl.ones(2)
    with pytest.raises(TypeError, match="two devices, cpu and cuda"):
        a + a.cuda()
    w = minidl.ones(2, requires_grad=True)
    (w.cuda() * 2).sum().backward()
    assert type(w.grad.array) is np.ndarray and w.grad.tolist() == [2, 2]


def test_a_missing_package_is_named_with_the_extra_that_brings_it():
    with pytest.raises(ImportError) as caught:
        with backend.optional("ranks on the moon", "moon", "mars"):
            raise ModuleNotFoundError("No module", name="no_such_package")
    assert str(caught.value) == ("ranks on the moon: no_such_package is not installed. "
                                 "Run pip install 'minidl[moon]' or pip install 'minidl[mars]'")


def test_dtypes_are_kept_apart_in_order():
    arrays = [np.zeros(1, t) for t in ("f4", "f2", "f4")]
    groups = backend.by_dtype(arrays)
    assert list(groups) == [np.float32, np.float16]
    assert groups[np.dtype("f4")][0] is arrays[0] and groups[np.dtype("f4")][1] is arrays[2]


def test_the_address_read_from_the_array_is_numpys():
    for x in (np.zeros(3), np.arange(10.0)[3:], np.array(1.0), np.zeros(0)):
        assert backend.address(x) == x.ctypes.data
