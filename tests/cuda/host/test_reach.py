"""What a kernel can run is decided by what is proven: function objects, pointers, operators."""

import numpy as np
import pytest

from minidl import kernel
from minidl.cuda import KernelError
from minidl.cuda.host import reach
from minidl.cuda.host.includes import KERNELS, inline_includes
from minidl.cuda.host.source import Source

# each: the file; the launched kernel; the form it must have
HIDDEN = {
    "function object": (
        "struct Twice { __device__ float operator()(float x) const { return x * threadIdx.x; } };\n"
        "__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  Twice f; if (i < n) y[i] = f(1.0f); }", "k"),
    "function object as a template argument": (
        "struct Twice { __device__ float operator()(float x) const { return x * threadIdx.x; } };\n"
        "template <class F> __global__ void k(float* y, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = F()(1.0f); }",
        "k<Twice>"),
    "function as a template argument": (
        "__device__ float times(float x) { return x * threadIdx.x; }\n"
        "template <float (*f)(float)> __global__ void k(float* y, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = f(1.0f); }",
        "k<times>"),
    "table of functions": (
        "__device__ float times(float x) { return x * threadIdx.x; }\n"
        "__device__ float (*table[1])(float) = {times};\n"
        "__global__ void k(float* y, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = table[0](1.0f); }",
        "k"),
    "operator": (
        "struct Number { float v; };\n"
        "__device__ Number operator*(Number a, Number b) {\n"
        "  return {a.v * b.v * threadIdx.x}; }\n"
        "__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  Number a = {1.0f}; if (i < n) y[i] = (a * a).v; }", "k"),
    "operator with another word before a parenthesis": (
        "struct Number { float v; };\n"
        "__device__ Number operator*(Number a, Number b) noexcept(true) {\n"
        "  return {a.v * b.v * threadIdx.x}; }\n"
        "__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  Number a = {1.0f}; if (i < n) y[i] = (a * a).v; }", "k"),
    "behind an alias": (
        "struct Twice { __device__ static float of(float x) { return x * threadIdx.x; } };\n"
        "using Other = Twice;\n"
        "template <class V> struct Traits { typedef Other type; };\n"
        "__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[i] = Traits<float>::type::of(1.0f); }", "k"),
    "lambda outside": (
        "auto times = [](float x) { return x * threadIdx.x; };\n"
        "__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[i] = times(1.0f); }", "k"),
    "in a namespace, a macro": (
        "namespace a { namespace b { __device__ float times(float x) {\n"
        "  return x * threadIdx.x; } } }\n#define TIMES a::b::times\n"
        "__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "  if (i < n) y[i] = TIMES(1.0f); }", "k"),
}  # fmt: skip


@pytest.mark.parametrize("case", HIDDEN)
def test_a_thread_index_behind_any_name_gives_right_numbers(case, tmp_path):
    """Red before: the loop over threads was vectorised, and all threads read one threadIdx."""
    text, name = HIDDEN[case]
    path = tmp_path / "k.cu"
    path.write_text(text)
    y = np.full(100, -1, np.float32)
    run = kernel(path, name)
    run(4, 32, (y, 100))
    np.testing.assert_array_equal(y, np.arange(100) % 32)
    assert run.on_cpu.form == "flat"  # right, and still a loop


@pytest.mark.parametrize("case", HIDDEN)
def test_a_barrier_behind_any_name_needs_fibres(case, tmp_path):
    """Red before: Python was aborted."""
    text, name = HIDDEN[case]
    path = tmp_path / "k.cu"
    for returns in ("return x * threadIdx.x;", "return {a.v"):
        text = text.replace(returns, f"__syncthreads(); {returns}")
    path.write_text(text)
    y = np.full(100, -1, np.float32)
    run = kernel(path, name)
    run(2, 50, (y, 100))
    np.testing.assert_array_equal(y, np.arange(100) % 50)
    assert run.on_cpu.form == "fibre"


def test_what_cannot_run_has_no_say():
    text = """
    __device__ float meets(float x, int n) { __syncthreads(); return x; }
    struct Meets { __device__ void go() { __syncwarp(); } };
    enum Kind { FEW, MANY };
    __device__ float later(float x, int n);
    typedef float (*Pointer)(float);
    template <int N = 4> __device__ float twice(float x) { return N * x; }
    static const int n = 4;
    __global__ void waits(float* x) { x[0] = meets(x[0], 3); }
    __global__ void runs(float* x, int n) { if (MANY) x[n] = twice<>(x[0]); }
    """
    source = Source("k.cu", text)
    assert source.form("runs") == "flat" and source.form("waits") == "fibre"
    kept = source.without_unreached("runs")
    assert "MANY" in kept and "twice" in kept and kept.count("\n") == text.count("\n")
    assert "meets" not in kept and "Meets" not in kept and "later" not in kept


def test_a_function_that_a_type_calls_does_not_lead_to_the_type():
    """Red before: the kernel was refused, because Moved calls what the kernel calls."""
    text = """
    __device__ float2 operator+(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
    __device__ float twice(float x) { return 2 * x; }
    struct Moved {
      float by;
      __device__ Moved(float by) : by(by), x(by) {}
      struct Inner { int deep(int x) { return x; } };
      template <class T> __device__ void operator()(T t) { thrust::get<0>(t) = twice(by); }
      __device__ float far() { return twice(by); }
    };
    __global__ void runs(float* x) { x[0] = twice(x[0]); }
    template <class T> __global__ void moves(T* t) { t->far(); }
    template <class T> __global__ void digs(T* t) { t->deep(3); }
    """
    source = Source("k.cu", text)
    assert "Moved" not in source.without_unreached("runs")
    source.check_supported("runs")
    for name in "moves<float>", "digs<float>":
        with pytest.raises(KernelError, match="Thrust"):
            source.check_supported(name)


def test_a_parameter_that_points_to_an_array_gives_its_function_no_other_name():
    """`float (*rows)[4]` names the function `add` no more than float is one: whoever says float
    does not run it."""
    found = reach.declarations("__device__ void add(float (*rows)[4], int n) { __syncthreads(); }")
    assert [d.names for d in found] == [{"add"}]


def test_the_cpus_part_of_attentions_gradient_has_no_fibres():
    path = KERNELS / "attention_backward.cu"
    source = Source(path, inline_includes(path), {"T": "float", "E": "32"})
    assert "__shfl" not in source.reached_text("attention_row_dot")
