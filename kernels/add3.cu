// out = a + b + c, elementwise. The smallest kernel that shows why fusing ops saves time.
//
//   a, b, c, out   n elements of type T
//   Each element of out needs 3 reads and 1 write, 16 bytes in float. Two launches of an add kernel
//   need 4 reads and 2 writes, 24 bytes, because they write a + b to memory and read it again.
//   common.cuh defines T, to_float, from_float, and PACK(T): the number of elements in 16 bytes
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// A thread of add3 has three reads in flight. For the 2048 threads of an SM these are 24 KB in
// float. An H100 needs 15 KB, so add3 reaches 90%. In half only 12 KB are in flight, which gives
// 75%. add3_packs reads 16 bytes in each access, so it reaches 90 to 95%.
//
// Wrapper: minidl/ops/add3.py   Test: tests/ops/test_add3_kernel.py, tests/cuda/
//                                 Tutorial: tutorials/02_add3.py
#include "common.cuh"

// Naive: one launch for t = a + b, and one launch for out = t + c.
extern "C" __global__ void add3_naive(T* out, const T* a, const T* b, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard: the last block may reach past the end
    out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
}

// Fused: the sum a + b stays in a register.
extern "C" __global__ void add3(T* out, const T* a, const T* b, const T* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]) + to_float(c[i]));
}

// For a GPU: each access has 16 bytes, so a thread computes 4 floats or 8 halves. n_packs = ceil(n
// / PACK(T)).
extern "C" __global__ void add3_packs(T* out, const T* a, const T* b, const T* c, int n,
                                      int n_packs) {
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p < n_packs) {  // guard
    const int at = PACK(T) * p;
    const bool whole = packs(out) && packs(a) && packs(b) && packs(c);
    Pack<T> x = load_pack(a + at, n - at, whole), y = load_pack(b + at, n - at, whole),
            z = load_pack(c + at, n - at, whole);
    for (int k = 0; k < PACK(T); ++k)
      x.at[k] = from_float<T>(to_float(x.at[k]) + to_float(y.at[k]) + to_float(z.at[k]));
    store_pack(out + at, x, n - at, whole);
  }
}

// The exercise of tutorial 02: out = max(a + b + c + bias, 0). The arrays have `cols` columns, and
// bias has one value for each column: element i takes bias[i % cols].
extern "C" __global__ void add3_relu_bias(T* out, const T* a, const T* b, const T* c,
                                          const T* bias, int n, int cols) {
  // >>> exercise 02a: add3_relu_bias
  // One thread makes one element. Find its index as in add3 above. The comment before this kernel
  // has the formula. n need not be a multiple of the threads in a block, so the last block may have
  // threads without an element. to_float(x) converts an element of type T to float.
  // from_float<T>(x) converts a float to T.
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {  // guard
    auto sum = to_float(a[i]) + to_float(b[i]) + to_float(c[i]) + to_float(bias[i % cols]);
    out[i] = from_float<T>(sum > 0 ? sum : 0);
  }
  // <<<
}
