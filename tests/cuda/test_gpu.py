"""The GPU path: on a GPU against NumPy; without one, what reaches CuPy."""

import importlib
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import minidl.cuda as cuda


def array(n, dtype):
    import cupy

    return cupy.zeros(n, dtype)


@pytest.fixture
def log(strict_cupy, monkeypatch):
    """What reaches CuPy: a dict for each RawModule, a tuple for each launch. Nothing is run."""
    log = []

    class Function:
        def __init__(self, name):
            self.name = name

        def __call__(self, grid, block, args, shared_mem=0):
            most = getattr(self, "max_dynamic_shared_size_bytes", None)
            log.append((self.name, grid, block, args, shared_mem, most))

    class RawModule:
        def __init__(self, **made):
            log.append(made)

        def get_function(self, name):
            return Function(name)

    monkeypatch.setattr(strict_cupy, "RawModule", RawModule)
    monkeypatch.delitem(sys.modules, "minidl.cuda.gpu", raising=False)
    importlib.import_module("minidl.cuda.gpu")
    yield log
    del sys.modules["minidl.cuda.gpu"], cuda.gpu  # what it remembers has run nothing


def test_cupy_gets_the_file_and_numbers_of_the_right_width(log):
    arrays = [array(8, "f2") for _ in range(4)]
    cuda.kernel("add3.cu", "add3", defines={"T": "__half"})(4, (256,), (*arrays, 8))
    made, (name, grid, block, args, shared_mem, _) = log
    assert made["name_expressions"] == ("add3",)
    # the macro T comes after NVIDIA's headers, which use the name; our own header is in its place
    code = made["code"]
    assert code.startswith("#include <cuda_fp16.h>\n") and code.count("#include") == 1
    assert code.index("#define T __half\n") < code.index("__half2float") < code.index("void add3(")
    assert (name, grid, block, shared_mem) == ("add3", (4, 1, 1), (256, 1, 1), 0)
    assert all(a is b for a, b in zip(args, arrays, strict=False)) and type(args[4]) is np.int32


def test_template_instances_and_large_shared_memory(log, tmp_path):
    file = tmp_path / "t.cu"
    file.write_text(
        "template <typename T> __global__ void t(T* x, float a) {"
        "  extern __shared__ T s[]; x[0] = s[0] * a; }"
    )
    cuda.kernel(file, "t<double>")(1, 32, (array(8, "f8"), 2), shared_mem=100_000)
    made, (name, _, _, args, shared_mem, allowed) = log
    assert made["name_expressions"] == ("t<double>",) and name == "t<double>"
    assert type(args[1]) is np.float32 and shared_mem == allowed == 100_000


def test_a_kernel_with_a_name_of_c_plus_plus(log, tmp_path):
    """Without extern "C" its compiled name is _Z5scalePff: CuPy learns it by a name expression."""
    file = tmp_path / "scale.cu"
    file.write_text("__global__ void scale(float* x, float a) { x[threadIdx.x] *= a; }")
    cuda.kernel(file)(1, 8, (array(8, "f4"), 2))
    assert log[0]["name_expressions"] == ("scale",)


def test_an_edited_file_or_include_reaches_cupy(log, tmp_path):
    """CuPy knows what it compiled by the text alone: so the text holds its includes."""
    file, include = tmp_path / "k.cu", tmp_path / "factor.cuh"
    text = '#include "factor.cuh"\nextern "C" __global__ void k(float* x) { *x *= FACTOR; }'

    def compiled():
        cuda.kernel(file)(1, 1, (array(1, "f4"),))
        return [made["code"] for made in log if isinstance(made, dict)]

    file.write_text(text)
    include.write_text("#define FACTOR 2")
    assert compiled() == compiled()
    include.write_text("#define FACTOR 3")
    assert "#define FACTOR 3" in compiled()[1]
    file.write_text(text.replace("*=", "+="))
    assert "+= FACTOR" in compiled()[2]


def test_a_kept_kernel_hands_the_edited_file_to_cupy(log, tmp_path):
    from minidl.cuda.host.includes import LOOK_S

    file = tmp_path / "k.cu"
    text = 'extern "C" __global__ void k(float* x) { x[0] = %d; }'
    file.write_text(text % 1)
    kernels = [cuda.kernel(file), cuda.kernel(file)]
    for value in (1, 2):
        file.write_text(text % value)
        for kernel in kernels:
            kernel(1, 1, (array(1, "f4"),))
        assert [made for made in log if isinstance(made, dict)][-1]["code"].count(
            f"x[0] = {value}") == 1
        time.sleep(2 * LOOK_S)
    assert len([made for made in log if isinstance(made, dict)]) == 2


def test_headers_are_refused_as_on_the_cpu(log, tmp_path):
    file = tmp_path / "k.cu"
    file.write_text('#include <math.h>\n#include <vector>\n__global__ void k(float* x) {}')
    cuda.kernel(file)(1, 1, (array(1, "f4"),))
    code = log[0]["code"]
    assert "#error minidl: <vector> is not supported" in code and "include <math.h>" not in code
    assert "#define M_PI 3.14" in code and "#define INFINITY" in code


def test_each_launch_gets_its_own_numbers(log, tmp_path):
    """What is remembered of a launch are its numbers in the types of the parameters."""
    file = tmp_path / "n.cu"
    file.write_text("__global__ void n(int rows, float* x, float scale, bool flag) {}")
    kernel, x, y = cuda.kernel(file), array(8, "f4"), array(8, "f4")
    for args in (1, x, 0.5, True), (2, y, 0.5, True), (1, x, 0.25, False), (1, y, 0.5, True):
        kernel(1, 32, args)
        name, *_, given, _, _ = log[-1]
        assert given == args and given[1] is args[1]
        assert [type(a) for a in given[:1] + given[2:]] == [np.int32, np.float32, np.bool_]
    with pytest.raises(TypeError, match="pass an integer, got the float 1.5"):
        kernel(1, 32, (1.5, x, 0.5, True))
    for rows in range(1000):
        kernel(1, 32, (rows, x, 0.5, True))
    assert len(kernel.on_gpu._known) <= 256


@pytest.mark.parametrize(
    "change, kind, words",
    [
        (
            lambda a: a.__setitem__(1, array(8, "f8")),
            TypeError,
            "'a' points to float; got an array of float64",
        ),
        (
            lambda a: a.__setitem__(1, array((8, 2), "f4")[:, 0]),
            ValueError,
            "must be contiguous",
        ),
        (lambda a: a.__setitem__(1, np.zeros(8, np.float32)), TypeError, "two devices"),
        (lambda a: a.__setitem__(4, 2**31), OverflowError, "beyond the range of int"),
        (lambda a: a.pop(), TypeError, "takes 5 arguments, got 4"),
    ],
)
def test_a_wrong_launch_never_reaches_cupy(log, change, kind, words):
    args = [array(8, "f4") for _ in range(4)] + [8]
    change(args)
    with pytest.raises(kind, match=words):
        cuda.kernel("add3.cu", "add3")(1, 32, tuple(args))
    assert not [entry for entry in log if isinstance(entry, tuple)]


def test_a_misaligned_float4_pointer_is_refused(log, tmp_path):
    file = tmp_path / "v.cu"
    file.write_text('extern "C" __global__ void v(float4* x) {}')
    cuda.kernel(file)(1, 32, (array(8, "f4"),))
    with pytest.raises(ValueError, match="must be a multiple of 16"):
        cuda.kernel(file)(1, 32, (array(9, "f4")[1:],))


@pytest.mark.gpu
@pytest.mark.parametrize("element, dtype", [("float", "f4"), ("double", "f8"), ("__half", "f2")])
@pytest.mark.parametrize("n", [1, 255, 256, 257, 1_000_003])
def test_add3_on_a_gpu(n, element, dtype):
    import cupy

    a, b, c = (cupy.random.default_rng(k).random(n, dtype="f8").astype(dtype) for k in range(3))
    out = cupy.full(n + 8, 7, dtype)
    cuda.kernel("add3.cu", "add3", defines={"T": element})(-(-n // 256), 256, (out, a, b, c, n))
    exact = a.get().astype("f8") + b.get().astype("f8") + c.get().astype("f8")
    # two roundings of float32 (or float64), then one of the element type
    np.testing.assert_allclose(out.get()[:n], exact, rtol=3 * np.finfo(dtype).eps)
    assert (out.get()[n:] == 7).all()


@pytest.mark.gpu
def test_kernels_compute_the_same_on_both_devices():
    import cupy

    file = Path(__file__).parent / "host" / "common_probe.cu"
    x = np.random.default_rng(0).integers(-99, 99, (3, 96)).astype(np.float32)
    total, top = np.zeros_like(x), np.zeros_like(x)
    cuda.kernel(file, "sums")(3, 96, (total, top, x, 96))
    device = [cupy.zeros_like(cupy.asarray(x)) for _ in range(2)]
    cuda.kernel(file, "sums")(3, 96, (*device, cupy.asarray(x), 96))
    np.testing.assert_array_equal(device[0].get(), total)
    np.testing.assert_array_equal(device[1].get(), top)
