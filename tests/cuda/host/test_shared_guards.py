"""A write behind (or before) shared memory ends a plain launch with a sentence, not Python, and the
next launch is right again. A warp that returns as a whole is not waited for at a barrier."""

import re

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda.host import shared
from minidl.cuda.host.scan import blank_out

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
