"""A wrong launch is refused before it starts, with the kernel's signature in the sentence."""

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.host import arguments
from minidl.cuda.host.arguments import Signature
from minidl.cuda.host.source import Source

TEXT = """
template <typename T> __global__ void k(T* out, const float* __restrict__ x, int n, float a,
unsigned char u,
                                        bool flag, __half h, double d, long long w) {}
"""
SIGNATURE = Signature("k<float>", Source("k.cu", TEXT).parameters("k<float>"))
GOOD = dict(
    out=np.zeros(4, np.float32),
    x=np.zeros(4, np.float32),
    n=4,
    a=1.5,
    u=255,
    flag=True,
    h=0.5,
    d=2,
    w=-(2**63),
)


def pack(grid=1, block=32, shared_mem=0, **changes):
    return SIGNATURE.pack(grid, block, tuple({**GOOD, **changes}.values()), shared_mem, 0, 1)


def read_only():
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    return x


def test_numbers_take_the_type_of_the_parameter():
    packed = pack()
    slots = [packed[40 + 8 * i : 48 + 8 * i] for i in range(9)]
    assert len(packed) == 40 + 9 * 8
    for slot, dtype, want in zip(
        slots[2:],
        ["i4", "f4", "u1", "?", "f2", "f8", "i8"],
        [4, 1.5, 255, True, 0.5, 2, -(2**63)],
        strict=True,
    ):
        assert np.frombuffer(slot, dtype, 1)[0] == want
    for slot, name in zip(slots, ["out", "x"], strict=False):
        assert int.from_bytes(slot, "little") == GOOD[name].ctypes.data


@pytest.mark.parametrize(
    "value", [np.float32(2), np.float64(2), np.int64(2), np.array(2.0), 2, True]
)
def test_numpy_scalars_are_numbers(value):
    assert pack(a=value)[64:68] == np.float32(value).tobytes()


def test_none_is_the_null_pointer_and_const_may_be_read_only():
    assert pack(x=None)[48:56] == bytes(8)
    assert pack(x=read_only())


@pytest.mark.parametrize(
    "changes, kind, words",
    [
        (
            {"x": np.zeros(4)},
            TypeError,
            "'x' points to float, which is float32; got an array of float64",
        ),
        ({"x": np.zeros((4, 4), np.float32)[:, 1]}, ValueError, "'x' must be contiguous"),
        ({"x": np.zeros((4, 4), np.float32).T}, ValueError, "'x' must be contiguous"),
        ({"x": np.zeros(17, np.uint8)[1:].view(np.float32)}, ValueError, "'x' is not aligned"),
        (
            {"out": read_only()},
            ValueError,
            "'out' is not const in the kernel, but the array is read-only",
        ),
        ({"x": 1.5}, TypeError, "'x' is a pointer: pass an array of float32, got float 1.5"),
        ({"x": [1.0]}, TypeError, "'x' is a pointer"),
        ({"n": 2.0}, TypeError, "'n' is of type int: pass an integer, got the float 2.0"),
        ({"n": np.zeros(1)}, TypeError, "'n' is of type int: pass a number, got an array"),
        ({"n": 2**31}, OverflowError, "'n' is 2147483648, beyond the range of int"),
        ({"u": -1}, OverflowError, "beyond the range of unsigned char"),
        ({"a": 1e39}, OverflowError, "beyond the largest float"),
        ({"h": 1e5}, OverflowError, "beyond the largest __half"),
        ({"a": "1"}, TypeError, "pass a number, got str"),
        ({"block": 1025}, ValueError, "has 1025 threads; it needs 1 to 1024"),
        ({"block": (32, 33)}, ValueError, "has 1056 threads; it needs 1 to 1024"),
        ({"block": (32, 0)}, ValueError, "has 0 threads"),
        ({"grid": 0}, ValueError, "skip the launch"),
        ({"grid": (1, 65536)}, ValueError, "grid (1, 65536, 1) must be"),
        ({"grid": (1, 1, 1, 1)}, ValueError, "1 to 3 numbers"),
        ({"shared_mem": 300000}, ValueError, "a block has at most"),
    ],
)
def test_a_wrong_launch_is_refused(changes, kind, words):
    with pytest.raises(kind) as caught:
        pack(**changes)
    assert words in str(caught.value)
    assert "k<float>(T* out, const float* __restrict__ x, int n" in str(caught.value)


def test_infinity_and_nan_are_floats():
    assert pack(a=float("inf"))[64:68] == np.float32(np.inf).tobytes()
    assert np.isnan(np.frombuffer(pack(a=float("nan"))[64:68], np.float32)[0])


def test_too_few_arguments():
    with pytest.raises(TypeError, match="takes 9 arguments, got 1"):
        SIGNATURE.pack(1, 32, (1,), 0, 0, 1)


def test_grid_and_block_may_be_numbers_tuples_and_lists():
    assert pack(grid=[2, 3], block=(4,)) == pack(grid=(2, 3, 1), block=4)


def test_the_address_read_from_the_array_is_numpys():
    for x in (np.zeros(3), np.arange(10.0)[3:], np.array(1.0), np.zeros(0)):
        assert arguments.address(x) == x.ctypes.data


def test_a_pointer_to_a_struct_is_refused_by_name():
    with pytest.raises(cuda.KernelError, match="parameter 's' has type 'Config'"):
        Signature("k", Source("k.cu", "__global__ void k(Config* s) {}").parameters("k"))
