"""A wrong launch is refused before it starts, with the kernel's signature in the sentence."""

import ctypes

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import dispatch
from minidl.cuda.host import cpu
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


WRONG = [
    (
        {"x": np.zeros(4)},
        TypeError,
        "'x' points to float, which is float32; got an array of float64",
    ),
    ({"x": np.zeros((4, 4), np.float32)[:, 1]}, ValueError, "'x' must be contiguous"),
    ({"x": np.zeros((4, 4), np.float32).T}, ValueError, "'x' must be contiguous"),
    ({"x": np.zeros(17, np.uint8)[1:].view(np.float32)}, ValueError, "'x' must begin at"),
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
    ({"grid": (1, 65536)}, ValueError, "grid (1, 65536, 1): each number must be"),
    ({"grid": (1, 1, 1, 1)}, ValueError, "1 to 3 numbers"),
    ({"shared_mem": 300000}, ValueError, "a block has at most"),
]


@pytest.mark.parametrize("changes, kind, words", WRONG)
def test_a_wrong_launch_is_refused(changes, kind, words):
    with pytest.raises(kind) as caught:
        pack(**changes)
    assert words in str(caught.value)
    assert "k<float>(T* out, const float* __restrict__ x, int n" in str(caught.value)


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    """launch(n=5, ...): the compiled kernel, which writes x[0] + n to out[0]."""
    file = tmp_path_factory.mktemp("arguments") / "k.cu"
    file.write_text(TEXT.replace("{}", "{ if (out) out[0] = (x ? x[0] : 0) + n; }"))
    run = cuda.kernel(file, "k<float>")

    def launch(grid=1, block=1, shared_mem=0, **changes):
        run(grid, block, tuple({**GOOD, **changes}.values()), shared_mem=shared_mem)

    launch()  # compiled, and compared with its other form
    return launch


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("changes, kind, words", WRONG)
def test_a_wrong_launch_of_a_compiled_kernel_runs_nothing(launch, changes, kind, words):
    good = dict(out=np.full(4, 7, np.float32))
    with pytest.raises(kind) as caught:
        launch(**{**good, **changes})
    assert words in str(caught.value)
    assert good["out"][0] == 7


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler")
def test_what_only_python_knows_to_be_right_runs_too(launch):
    """A subclass, an equal dtype that is another object, NULL, NumPy's numbers."""
    class Mine(np.ndarray):
        pass

    x = np.full(4, 3, np.float32)
    same = np.full(4, 3, np.dtype([("a", "f4")])["a"])
    for changes, want in [({"x": x}, 7), ({"x": x.view(Mine)}, 7), ({"x": None}, 4),
                          ({"x": same}, 7), ({"x": read_only(), "n": np.int64(5)}, 5)]:
        out = np.zeros(4, np.float32)
        launch(out=out, **changes)
        assert out[0] == want, changes
        launch(out=out.view(Mine), **changes)
        assert out[0] == want
    launch(out=None)


@pytest.mark.skipif(not dispatch.cpu_compiler(), reason="no C++ compiler")
def test_the_layout_of_an_array_is_compared_with_numpys_own_answers():
    assert cpu.arrays_are_known(cpu.runtime())
    a = np.zeros(3)
    right = id(a), id(np.ndarray), a.ctypes.data, id(a.dtype)
    for i in range(4):
        wrong = [ctypes.c_void_p(w + 8 * (i == k)) for k, w in enumerate(right)]
        assert i == 0 or not cpu.runtime().minidl_knows_arrays(*wrong, a.flags.num)
    assert not cpu.runtime().minidl_knows_arrays(*map(ctypes.c_void_p, right), a.flags.num ^ 1)


def test_infinity_and_nan_are_floats():
    assert pack(a=float("inf"))[64:68] == np.float32(np.inf).tobytes()
    assert np.isnan(np.frombuffer(pack(a=float("nan"))[64:68], np.float32)[0])


def test_too_few_arguments():
    with pytest.raises(TypeError, match="takes 9 arguments, got 1"):
        SIGNATURE.pack(1, 32, (1,), 0, 0, 1)


def test_grid_and_block_may_be_numbers_tuples_and_lists():
    assert pack(grid=[2, 3], block=(4,)) == pack(grid=(2, 3, 1), block=4)


def test_a_reference_is_refused_by_name():
    with pytest.raises(cuda.KernelError, match="parameter 's' has type 'Config'"):
        Signature("k", Source("k.cu", "__global__ void k(const Config& s) {}").parameters("k"))


def test_a_block_is_no_larger_than_the_kernel_has_promised_the_compiler(tmp_path):
    file = tmp_path / "bounds.cu"
    file.write_text("""
        constexpr int kWide = 4;
        extern "C" __global__ void __launch_bounds__(8, 2) plain(float* x) { x[threadIdx.x] = 1; }
        __global__ __launch_bounds__(kWide * 3) void named(float* x) { x[threadIdx.x] = 1; }
        template <typename T, int N = 4> __launch_bounds__(N + 1) __global__
        void instance(T* x) { x[threadIdx.x] = 1; }""")
    for name, most in ("plain", 8), ("named", 12), ("instance<float>", 5), ("instance<int, 9>", 10):
        kernel, x = cuda.kernel(file, name), np.zeros(16, "i4" if "int," in name else "f4")
        kernel(1, most, (x,))
        assert x.sum() == most
        with pytest.raises(ValueError, match=f"{most + 1} threads; it needs 1 to {most}, because "
                           "its __launch_bounds__ has this limit"):
            kernel(1, most + 1, (x,))
