"""What is read from a .cu file: kernels, parameters, templates, forms, includes, lines."""

from pathlib import Path

import pytest

from minidl.cuda import KernelError
from minidl.cuda.host import scan
from minidl.cuda.host.includes import inline_includes
from minidl.cuda.host.source import Source

IDIOMS = Path(__file__).parent / "idioms.cu"


def source(text, **defines):
    return Source("k.cu", text, defines)


def params(text, name="k", **defines):
    return [
        (p.name, p.kind, p.ctype, p.dtype, p.const)
        for p in source(text, **defines).parameters(name)
    ]


def test_kernels_are_found_among_everything_else():
    text = """
    // __global__ void in_a_comment(int* x) {}
    /* __global__ void in_another(int* x) {} */
    const char* s = "__global__ void in_a_string(int* x) {}";
    #define MACRO __global__ void in_a_macro(int* x) {}
    namespace inner { __device__ float f(float x) { return x > 0 ? x : -x; } }
    struct Functor { __device__ float operator()(float x) const { return x; } };
    extern "C" __global__ void __launch_bounds__(256, 2) plain(float *x) { if (x[0] > 0) { x[0] = 0;
    } } static __global__ void quiet(void) {}
    template <typename T, int N = 4> __launch_bounds__(N) __global__ void tmpl(T* x) {}
    __global__ void only_declared(int* x);
    void host() { int x = 3; }
    """
    assert [k.name for k in source(text).kernels] == ["plain", "quiet", "tmpl"]
    assert source(text).parameters("quiet") == []


@pytest.mark.parametrize(
    "written, read",
    [
        ("const float* __restrict__ x", ("x", "pointer", "float", "f4", True)),
        ("float const *x", ("x", "pointer", "float", "f4", True)),
        ("float* const x", ("x", "pointer", "float", "f4", False)),
        ("float x[]", ("x", "pointer", "float", "f4", False)),
        ("unsigned char *x", ("x", "pointer", "unsigned char", "u1", False)),
        ("__half* x", ("x", "pointer", "__half", "f2", False)),
        ("const half *x", ("x", "pointer", "__half", "f2", True)),
        ("const float4* x", ("x", "pointer", "float4", "f4", True)),
        ("void* x", ("x", "pointer", "void", None, False)),
        ("float** x", ("x", "pointer", "unsigned long long", "u8", False)),
        ("float* const* x", ("x", "pointer", "unsigned long long", "u8", True)),
        ("const int n", ("n", "scalar", "int", "i4", False)),
        ("unsigned n", ("n", "scalar", "unsigned int", "u4", False)),
        ("size_t n", ("n", "scalar", "unsigned long", "u8", False)),
        ("int64_t n", ("n", "scalar", "long long", "i8", False)),
        ("std::uint8_t n", ("n", "scalar", "unsigned char", "u1", False)),
        ("bool b = true", ("b", "scalar", "bool", "?", False)),
        ("Config c", ("c", "struct", "Config", None, False)),
        ("const Config* c", ("c", "pointer", "Config", None, True)),
        ("Config& c", ("c", "other", "Config", None, False)),
    ],
)
def test_parameters(written, read):
    assert params(f"__global__ void k({written}) {{}}") == [read]


def test_types_are_followed_through_typedefs_macros_and_defines():
    text = """typedef float real; using index = long long;
    #define ELEMENT real
    __global__ void k(ELEMENT* a, const T* b, index n) {}"""
    assert [p[2] for p in params(text, T="__half")] == ["float", "__half", "long long"]


def test_template_arguments_take_their_places():
    text = (
        "template <typename T, class U = double, int N = 4> __global__ void k(T* a, U b, int n) {}"
    )
    assert [p[2] for p in params(text, "k<float>")] == ["float", "double", "int"]
    assert [p[2] for p in params(text, "k<int, __half, 8>")] == ["int", "__half", "int"]
    with pytest.raises(
        KernelError,
        match=r"needs a value of 'T'; ask for an instance, such as .*k<float, float, 4>",
    ):
        params(text, "k")
    with pytest.raises(KernelError, match="more arguments than the template"):
        params(text, "k<int, int, 3, 4>")
    with pytest.raises(KernelError, match="is not a template"):
        params("__global__ void k(int n) {}", "k<float>")


def test_an_unknown_kernel_is_answered_with_the_known_ones():
    with pytest.raises(KernelError, match="no kernel 'c' in this file; it has: a, b"):
        source("__global__ void a() {} __global__ void b() {}").kernel("c")


def test_the_form_follows_calls_but_not_mere_neighbours():
    text = """
    __device__ float deep(float v) { return __shfl_down_sync(~0u, v, 1); }
    __device__ float middle(float v) { return deep(v); }
    __global__ void calls(float* x) { x[0] = middle(x[0]); }
    __global__ void shared(float* x) { __shared__ float s[4]; x[0] = s[0]; }
    __global__ void alone(float* x) { x[0] = 1; /* __syncthreads() */ }
    __global__ void locks(int* x) { while (atomicCAS(x, 0, 1)) ; }
    """
    forms = {k.name: source(text).form(k.name) for k in source(text).kernels}
    assert forms == {"calls": "fibre", "shared": "fibre", "alone": "flat", "locks": "fibre"}


@pytest.mark.parametrize(
    "body, what",
    [("asm volatile(\"\");", "inline PTX"), ("wmma::fragment<int> f;", "tensor cores"),
     ("child<<<1, 1>>>();", "dynamic parallelism"),
     ("cg::this_grid().sync();", "grid-wide"), ("tex2D<float>(t, 0, 0);", "textures"),
     ("std::vector<int> v;", r"the C\+\+ standard library"),
     ("__pipeline_commit();", "asynchronous copies"), ("__nv_fp8_e4m3 b;", "fp8")],
)  # fmt: skip
def test_unsupported_features_are_named_with_file_and_line(body, what):
    s = source(f"__global__ void fine() {{}}\n__global__ void k() {{\n  {body}\n}}")
    s.check_supported("fine")
    with pytest.raises(KernelError, match=rf"k.cu:3: k uses {what}"):
        s.check_supported("k")


def test_includes_are_put_in_place(tmp_path):
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;')
    (tmp_path / "b.cuh").write_text("#pragma once\nint b;")
    (tmp_path / "k.cu").write_text('#include "a.cuh"\n#include "b.cuh"\n#include <math.h>\nint k;')
    text = inline_includes(tmp_path / "k.cu")
    code = [line for line in text.split("\n") if line.startswith("int")]
    assert code == ["int b;", "int a;", "int k;"]
    assert text.rstrip().endswith("int k;") and f'#line 2 "{tmp_path / "k.cu"}"' in text


def test_a_missing_include_is_an_error_only_where_it_is_compiled(tmp_path):
    (tmp_path / "k.cu").write_text('#include <vector>\n#include "mine.cuh"\n')
    text = inline_includes(tmp_path / "k.cu")
    assert "#error minidl: <vector> is not supported" in text
    assert "#error minidl: mine.cuh is not found" in text


def test_a_header_that_includes_itself_is_refused(tmp_path):
    (tmp_path / "k.cu").write_text('#include "k.cu"\n')
    with pytest.raises(KernelError, match="includes itself"):
        inline_includes(tmp_path / "k.cu")


def test_every_kernel_of_the_idioms_is_read():
    text = inline_includes(IDIOMS)
    kernels = {k.name for k in Source(IDIOMS, text).kernels}
    assert {"saxpy_stride", "sum_static", "softmax_cg", "spin_lock", "map"} <= kernels
    assert (
        "binary_mul" not in kernels
    )  # made by a macro: only the preprocessor's output shows it (test_idioms.py runs it)


@pytest.mark.parametrize("written, read", [
    ("extern float __shared__ s[];", "extern __shared__ float  s[];"),
    ("case 1: static volatile\nint __shared__ n;", "case 1: __shared__  volatile\nint  n;"),
    ("if (x) const Pair<int, 2>* __shared__ p;", "if (x) __shared__ const Pair<int, 2>*  p;"),
    ("{float alignas(2 * (3 + 5)) __shared__ static extern s[];",
     "{extern __shared__ float alignas(2 * (3 + 5))    s[];"),
    ("f(); // float\n __shared__ int a; int /* b */ __shared__ b;",
     "f(); // float\n __shared__  int a; __shared__ int           b;"),
    ("# 3 \"a.cu\"\nfloat __shared__ a;", "# 3 \"a.cu\"\n__shared__ float  a;"),
    ("float\n# 3 \"a.cu\"\n__shared__ a;", "float\n# 3 \"a.cu\"\n__shared__ a;"),
    ("\"float __shared__ a;\"", "\"float __shared__ a;\""),
    ("a = 1" * 9999 + " __shared__ int b;", "a = 1" * 9999 + " __shared__  int b;")])
def test_shared_stands_first(written, read):
    words_of_lines = [line.split() for line in scan.shared_first(written).split("\n")]
    assert words_of_lines == [line.split() for line in read.split("\n")]
