"""One place chooses between kernel and plain op, and says so when it cannot choose the kernel."""

import numpy as np
import pytest

import minidl
from minidl.fused import dispatch

needs_compiler = pytest.mark.skipif(not dispatch.cpu_compiler(),
                                    reason="no C++ compiler for the kernels")


@needs_compiler
@pytest.mark.parametrize("dtypes, usable", [
    ("f4", True), ("f2", True), ("f8", False), ("f4 f4 i8", True), ("f4 f2", False), ("i8", False),
])
def test_kernels_run_on_single_or_half_precision_alone(dtypes, usable):
    arrays = [np.zeros(3, d) for d in dtypes.split()]
    assert dispatch.usable(*arrays, 2.5, None, "text") is usable
    assert dispatch.usable(*map(minidl.from_numpy, arrays)) is usable


@needs_compiler
def test_either_picks_by_switch_dtype_and_accepts():
    op = dispatch.either(lambda x, k=1: "fused", lambda x, k=1: "plain",
                         accepts=lambda x, k=1: k == 1)
    x = np.zeros(3, np.float32)
    assert op(x) == "fused"
    assert op(x, k=2) == "plain"
    assert op(x.astype(np.float64)) == "plain"
    with minidl.use_fused(False):
        assert op(x) == "plain"
        with minidl.use_fused(True):
            assert op(x) == "fused"
        assert op(x) == "plain"
    assert op(x) == "fused"


def test_without_a_compiler_the_plain_op_runs_and_says_so_once(monkeypatch):
    from minidl.cuda import KernelError
    from minidl.cuda.host import compiler

    def none():
        raise KernelError("no C++ compiler: apt install g++.")

    monkeypatch.setattr(compiler, "find_compiler", none)
    dispatch.cpu_compiler.cache_clear()
    op = dispatch.either(lambda x: "fused", lambda x: "plain")
    x = np.zeros(3, np.float32)
    try:
        with pytest.warns(RuntimeWarning, match="apt install g.*Until then the plain NumPy ops"):
            assert op(x) == "plain"
        assert op(x) == "plain"  # a second warning would be an error here
    finally:
        dispatch.cpu_compiler.cache_clear()
