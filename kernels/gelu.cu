// GELU: forward in one pass over memory, backward in one pass.
//
//   gelu(x) = x P(x)            d gelu / dx = P + x P'
//   normal form (TANH 0):  P = probability that a standard normal number is below x
//   tanh form   (TANH 1):  P = (1 + tanh u) / 2 = 1 / (1 + e^-2u),
//                          u = sqrt(2/pi) (x + 0.044715 x^3)
//
// The arrays have n elements of type T. Bytes that are moved for each element, in float:
//   gelu             8: reads x, writes out
//   gelu_backward   12: reads gy and x, writes gx
// A chain of array operations makes about twenty passes over memory. Each pass moves 8 or 12 bytes
// for each element. On a CPU the kernels with one element in each thread are the fastest. The
// compiler makes a loop over vectors from them.
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured. Bytes in flight are
// bytes that are requested, but have not yet arrived. An H100 moves 3.3 TB/s, and a read takes 600
// ns. So each of its 132 SMs must have 15 KB in flight. An SM runs 2048 threads. If each reads one
// element, 8 KB are in flight in float (50%), and 4 KB in half (25%). In _packs each thread reads
// 16 bytes, so 32 KB are in flight. This gives 90% in float. In half it gives some percent less,
// because more exponentials must be computed in the same time.
//
// Source: Hendrycks & Gimpel 2016 (arXiv 1606.08415). The approximation of the normal P: Hastings
// 1955, as in minidl/ops/normal.py.
// Wrapper: minidl/ops/gelu.py   Test: tests/ops/test_gelu_kernel.py
#include "gelu.cuh"

#ifndef TANH
#define TANH 0
#endif
#ifndef ACC  // the type of the arithmetic: float, or double for double
#define ACC float
#endif

__device__ __forceinline__ void normal(double x, double& p, double& slope) {
  p = 0.5 * erfc(-0.7071067811865476 * x);
  slope = 0.3989422804014327 * exp(-0.5 * x * x);
}

__device__ __forceinline__ void logistic(double x, double& p, double& slope) {
  double u2 = x * (1.5957691216057308 + 0.044715 * 1.5957691216057308 * x * x);
  double e = exp(-fabs(u2)), larger = 1.0 / (1.0 + e);
  p = u2 < 0.0 ? e * larger : larger;
  slope = e * larger * larger * (1.5957691216057308 + 3 * 0.044715 * 1.5957691216057308 * x * x);
}

template <typename V> __device__ __forceinline__ V gelu_of(V x) {
  V p, slope;
  if (TANH) logistic(x, p, slope); else normal(x, p, slope);
  return x * p;
}

template <typename V> __device__ __forceinline__ V slope_of(V x) {
  V p, slope;
  if (TANH) logistic(x, p, slope); else normal(x, p, slope);
  return p + x * slope;
}

extern "C" __global__ void gelu(T* out, const T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    out[i] = from_float<T>(gelu_of(to_float(x[i])));
}

// Forward saves only x. To compute the slope from x is faster than to read it from memory.
extern "C" __global__ void gelu_backward(T* gx, const T* gy, const T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    gx[i] = from_float<T>(to_float(gy[i]) * slope_of(to_float(x[i])));
}

// For a GPU: each thread computes 16 bytes. There are n_packs = ceil(n / PACK(T)) threads.
extern "C" __global__ void gelu_packs(T* out, const T* x, int n, int n_packs) {
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p < n_packs) {  // guard
    const int at = PACK(T) * p;
    const bool whole = packs(x) && packs(out);
    Pack<T> pack = load_pack(x + at, n - at, whole);
    for (int k = 0; k < PACK(T); ++k) pack.at[k] = from_float<T>(gelu_of(to_float(pack.at[k])));
    store_pack(out + at, pack, n - at, whole);
  }
}

extern "C" __global__ void gelu_backward_packs(T* gx, const T* gy, const T* x, int n,
                                               int n_packs) {
  int p = blockIdx.x * blockDim.x + threadIdx.x;
  if (p < n_packs) {  // guard
    const int at = PACK(T) * p;
    const bool whole = packs(x) && packs(gy) && packs(gx);
    Pack<T> pack = load_pack(x + at, n - at, whole), g = load_pack(gy + at, n - at, whole);
    for (int k = 0; k < PACK(T); ++k)
      pack.at[k] = from_float<T>(to_float(g.at[k]) * slope_of(to_float(pack.at[k])));
    store_pack(gx + at, pack, n - at, whole);
  }
}
