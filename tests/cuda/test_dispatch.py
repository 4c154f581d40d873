"""One place chooses between kernel and NumPy, and says so when it cannot choose the kernel. That
every op asks it, in every form of its call: tests/ops/test_one_function.py."""

import numpy as np
import pytest

import minidl
from minidl.cuda import dispatch


@pytest.mark.parametrize("dtypes, usable", [
    ("f4", True), ("f2", True), ("f8", False), ("f4 f4 i8", True), ("f2 f2 bool", True),
    ("f4 f2", False), ("f2 f4", False), ("f4 f8", False), ("f8 f4", False), ("i8", False),
    ("", False),
])
def test_kernels_run_on_single_or_half_precision_alone(dtypes, usable):
    arrays = [np.zeros(3, d) for d in dtypes.split()]
    assert dispatch.usable(*arrays, 2.5, None, "text") is usable
    assert dispatch.usable(2.5, None, *(np.asarray(a[0]) for a in arrays)) is usable  # 0-d


def test_bfloat16_is_neither():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NumPy has no bfloat16")
    half = np.zeros(3, ml_dtypes.bfloat16)
    assert not dispatch.usable(half) and not dispatch.usable(np.zeros(3, "f4"), half)


def test_pick_goes_by_the_switch_and_the_dtypes():
    x = np.zeros(3, np.float32)

    def picked(*arrays):
        return dispatch.pick("kernel", "reference", *arrays)

    assert picked(x) == "kernel"
    assert picked(x, x.astype(np.float64)) == "reference"
    with minidl.use_fused(False):
        assert picked(x) == "reference"
        with minidl.use_fused(True):
            assert picked(x) == "kernel"
        assert picked(x) == "reference"
    assert picked(x) == "kernel"


def test_without_a_compiler_the_reference_runs_and_says_so_once(monkeypatch):
    from minidl.cuda import KernelError
    from minidl.cuda.host import compiler

    def none():
        raise KernelError("no C++ compiler: apt install g++.")

    class Mapped(np.ndarray):  # as np.memmap is: an array of NumPy, too
        pass

    class OnGpu:
        dtype = np.dtype(np.float32)

    monkeypatch.setattr(compiler, "find_compiler", none)
    dispatch.cpu_compiler.cache_clear()
    x = np.zeros(3, np.float32)
    try:
        with pytest.warns(RuntimeWarning, match="apt install g.*Until then the plain NumPy ops"):
            assert dispatch.pick("kernel", "reference", x) == "reference"
        assert not dispatch.usable(x.view(Mapped))  # a second warning would be an error here
        assert dispatch.usable(OnGpu())  # CuPy brings a compiler of its own
        assert not dispatch.usable(OnGpu(), x)
        y = minidl.nn.functional.gelu(minidl.Tensor(x))
        assert (y.array == 0).all()
    finally:
        dispatch.cpu_compiler.cache_clear()
