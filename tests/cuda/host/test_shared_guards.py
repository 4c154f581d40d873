"""A write behind (or before) shared memory ends a plain launch with a sentence, not Python, and the
next launch is right again. A warp that returns as a whole is not waited for at a barrier."""

import re

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import dispatch
from minidl.cuda.host import compiler, shared
from minidl.cuda.host.scan import blank_out
from tests.conftest import some

if not dispatch.cpu_compiler() or compiler.find_compiler().kind != "gnu":
    pytest.skip("guards want g++: minidl/cuda/host/shared.py says why", allow_module_level=True)

TEXT = """
struct Pair { float a, b; };
extern "C" __global__ void fixed(float* y, int at) {
  __shared__ float s[30];
  int t = threadIdx.x;
  if (t < 30) s[t] = t;
  __syncthreads();
  if (t == 0 && blockIdx.x == 1 && at) ((char*)s)[at < 0 ? at : 119 + at] = 1;
  __syncthreads();
  if (t < 30) y[t] = s[29 - t];
}
extern "C" __global__ void wide(float* y, int at) {
  __shared__ __align__(16) float s[30];
  int t = threadIdx.x;
  if (t < 7 + at) ((float4*)s)[t] = make_float4(4 * t + 3, 4 * t + 2, 4 * t + 1, 4 * t);
  __syncthreads();
  if (t < 28) y[t] = s[t];
}
template <int N> __device__ float sum_of(int t, int at) {
  __shared__ float a[N], b[N][2];
  volatile __shared__ int one;
  __shared__ Pair p[2];
  a[t] = t, b[t][1] = 2 * t, one = 1, p[1].b = 4;
  __syncthreads();
  if (t == 0 && at) b[N][at] = 5;  // a third array may lie there
  auto f = [=](int k) { return a[k] + b[k][1] + one + p[1].b; };
  return f(N - 1 - t) + (sizeof(a) == 4 * N && sizeof b == 8 * N);
}
extern "C" __global__ void nested(float* y, int at) {
  float v = sum_of<32>(threadIdx.x % 32, at);
  if (threadIdx.x < 32) y[threadIdx.x] = v;
}
extern "C" __global__ void dynamic(float* y, int at) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  s[t] = t;
  __syncthreads();
  if (t == 0 && at) s[at < 0 ? at : 31 + at] = 1;
  __syncthreads();
  if (t < 30) y[t] = s[29 - t];
}
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("shared") / "guards.cu"
    path.write_text(TEXT)
    return path


def run(file, name, at, blocks=2):
    y = np.full(32, -1, np.float32)
    cuda.kernel(file, name)(blocks, 32, (y, at), shared_mem=128 * (name == "dynamic"))
    return y


FLIPPED = np.r_[np.arange(29, -1, -1), -1, -1]


@pytest.mark.parametrize("name", ["fixed", "dynamic"])
@pytest.mark.parametrize("at", [1, 8, 60, -1, -8])
def test_a_write_beside_shared_memory_is_a_sentence(file, name, at):
    with pytest.raises(cuda.KernelError) as error:
        run(file, name, at)
    text = str(error.value)
    assert f"kernel {name}: block (" in text and "minidl kernel run" in text
    assert ("before" if at < 0 else "behind") in text
    assert {"fixed": "the __shared__ variable s.", "dynamic": "shared_mem=128."}[name] in text
    np.testing.assert_array_equal(run(file, name, 0), FLIPPED)  # nothing is left of it


def test_the_last_vector_of_an_array_that_holds_no_whole_number_of_them(file):
    np.testing.assert_array_equal(run(file, "wide", 0)[:28].reshape(-1, 4)[:, ::-1].ravel(),
                                  np.arange(28))
    with pytest.raises(cuda.KernelError, match="behind the __shared__ variable s"):
        run(file, "wide", 1)


def test_guards_change_neither_sizes_nor_lambdas(file):
    t = np.arange(31, -1, -1)
    np.testing.assert_array_equal(run(file, "nested", 0), t + 2 * t + 1 + 4 + 1)
    with pytest.raises(cuda.KernelError, match="behind the __shared__ variable b"):
        run(file, "nested", 1)


def test_every_shared_variable_of_the_projects_kernels_has_guards():
    n = 0
    for path in sorted(cuda.KERNELS.glob("*.cu*")):
        text = blank_out(path.read_text())
        wanted = len(re.findall(r"(?<!extern )__shared__", text))
        assert shared.with_guards(text).count("MINIDL_GUARD(") >= wanted, path
        n += wanted
    assert n > 10  # there are some


# the words of a declaration in every order that C++ allows
DYNAMIC = ["extern __shared__ float s[];", "extern float __shared__ s[];",
           "float extern __shared__ s[];", "extern volatile float __shared__ s[];",
           "extern __shared__ volatile float s[];", "__shared__ extern float s[];",
           "volatile extern __align__(16) float __shared__ s[];", "float __shared__ extern s[];"]
FIXED = ["__shared__ float s[30];", "float __shared__ s[30];", "static __shared__ float s[30];",
         "__shared__ static float s[30];", "volatile float __shared__ s[30], one;",
         "alignas(alignof(float4)) static float volatile __shared__ s[30];",
         "Row<30> __shared__ s;", "struct Row<30> static __shared__ s;"]
ORDERS = """
template <int N> struct Row {
  float a[N];
  __device__ float& operator[](int i) { return ((float*)a)[i]; }
};
extern "C" __global__ void order(float* y, int at) {
  switch (at) { default: DECLARED
  int t = threadIdx.x;
  if (t < 30) s[t] = t;
  __syncthreads();
  if (t == 0 && at) s[29 + at] = 1;
  __syncthreads();
  if (t < 30) y[t] = s[29 - t]; }
}
"""


@pytest.mark.parametrize("declared", some([*DYNAMIC, *FIXED], of=3))
def test_the_words_of_a_declaration_may_stand_in_any_order(tmp_path, declared):
    path = tmp_path / "order.cu"
    path.write_text(ORDERS.replace("DECLARED", declared))
    kernel, y = cuda.kernel(path, "order"), np.full(32, -1, np.float32)
    dynamic = declared in DYNAMIC
    if dynamic:
        with pytest.raises(ValueError, match="declares `extern __shared__`; pass the size"):
            kernel(1, 32, (y, 0))
    given = {"shared_mem": 120 * dynamic}
    kernel(1, 32, (y, 0), **given)
    np.testing.assert_array_equal(y, FLIPPED)
    behind = "shared_mem=120" if dynamic else "behind the __shared__ variable s"
    with pytest.raises(cuda.KernelError, match=behind):
        kernel(1, 32, (y, 1), **given)
    assert not cuda.check(kernel, 1, 32, (y, 0), **given).errors
    found = cuda.check(kernel, 1, 32, (y, 1), **given).errors[0]
    assert (found.kind, found.line) == ("out of bounds", 11) and re.search(r"\bs\b", found.text)


def test_dynamic_memory_in_rows(tmp_path):
    path = tmp_path / "rows.cu"
    path.write_text("""
template <class T> __global__ void rows(T* y, int at) {
  extern __shared__ T s[][4];
  s[threadIdx.x / 4][threadIdx.x % 4] = y[threadIdx.x];
  __syncthreads();
  if (at && threadIdx.x == 0) s[8][at - 1] = 1;
  y[threadIdx.x] = s[threadIdx.x % 8][threadIdx.x / 8];
}""")
    kernel, x = cuda.kernel(path, "rows<double>"), np.arange(32.0)
    y = x.copy()
    kernel(1, 32, (y, 0), shared_mem=256)
    np.testing.assert_array_equal(y.reshape(4, 8), x.reshape(8, 4).T)
    with pytest.raises(cuda.KernelError, match="behind .* shared_mem=256"):
        kernel(1, 32, (x.copy(), 1), shared_mem=256)
    assert not cuda.check(kernel, 1, 32, (x.copy(), 0), shared_mem=256).errors
    assert cuda.check(kernel, 1, 32, (x.copy(), 1), shared_mem=256).errors
