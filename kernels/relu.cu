// Relu: keeps a positive number, and replaces a negative one by 0.
//
//   y = max(x, 0), nan stays nan                    gx = gy where y > 0, else 0
//
// The arrays have n elements of type T. Bytes that are moved for each element, in float:
//   relu             8: reads x, writes out
//   relu_backward   12: reads gy and y, writes gx
// There is almost no arithmetic, so a kernel takes as long as a copy. NumPy's maximum takes four
// times as long as a copy, because it tests each pair of numbers for nan. On a CPU the kernels with
// one element in each thread are the fastest. The compiler makes a loop over vectors from them.
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured (gelu.cu shows how).
// The kernels with one element in each thread reach 50% in float and 25% in half. In _packs each
// thread reads 16 bytes, which gives 90%.
//
// Wrapper: minidl/ops/activations.py   Test: tests/ops/test_relu_kernel.py
#include "common.cuh"

__device__ __forceinline__ T relu_of(T x) {
  return to_float(x) < 0 ? from_float<T>(0.0f) : x;  // nan < 0 is false, so nan stays
}

__device__ __forceinline__ T gradient(T gy, T y) {
  return to_float(y) > 0 ? gy : from_float<T>(0.0f);
}

extern "C" __global__ void relu(T* out, const T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = relu_of(x[i]);
}

extern "C" __global__ void relu_backward(T* gx, const T* gy, const T* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    gx[i] = gradient(gy[i], y[i]);
}

// For a GPU: each thread computes 16 bytes. There are n_packs = ceil(n / PACK(T)) threads.
extern "C" __global__ void relu_packs(T* out, const T* x, int n, int n_packs) {
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p < n_packs) {  // guard
    const int at = PACK(T) * p;
    const bool whole = packs(x) && packs(out);
    Pack<T> pack = load_pack(x + at, n - at, whole);
    for (int k = 0; k < PACK(T); ++k) pack.at[k] = relu_of(pack.at[k]);
    store_pack(out + at, pack, n - at, whole);
  }
}

extern "C" __global__ void relu_backward_packs(T* gx, const T* gy, const T* y, int n,
                                               int n_packs) {
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p < n_packs) {  // guard
    const int at = PACK(T) * p;
    const bool whole = packs(y) && packs(gy) && packs(gx);
    Pack<T> pack = load_pack(y + at, n - at, whole), g = load_pack(gy + at, n - at, whole);
    for (int k = 0; k < PACK(T); ++k) pack.at[k] = gradient(g.at[k], pack.at[k]);
    store_pack(gx + at, pack, n - at, whole);
  }
}
