// GELU: forward in one pass over memory, backward in one pass.
//
//   gelu(x) = x P(x)            d gelu / dx = P + x P'
//   normal form (TANH 0):  P = probability that a standard normal number is below x
//   tanh form   (TANH 1):  P = (1 + tanh u) / 2 = 1 / (1 + e^-2u),
//                          u = sqrt(2/pi) (x + 0.044715 x^3)
//
//                  arrays, n elements of type T   bytes an element in float
//   gelu           out, x                                    8
//   gelu_backward  gx, gy, x                                12
//
// A chain of array operations makes about twenty passes over memory, with 8 or 12 bytes an element
// in each. On a CPU the naive kernel is the fast one: it becomes a loop over vectors.
//
// Expected share of a copy's bandwidth on a GPU. It is computed, not measured. An H100 moves 3.3
// TB/s, and a read takes 600 ns. So each of its 132 SMs must have 15 KB in flight (requested, not
// yet arrived). 2048 threads that read one element each have 8 KB in flight in float (50%) and 4 KB
// in half (25%). In _packs each thread reads 16 bytes, so 32 KB are in flight. This gives 90%, and
// some percent less in half because of e^x.
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

// Forward saves only x. Backward computes the slope again, which is faster than to read it from
// memory.
extern "C" __global__ void gelu_backward(T* gx, const T* gy, const T* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)  // guard
    gx[i] = from_float<T>(to_float(gy[i]) * slope_of(to_float(x[i])));
}

// For a GPU: n_packs = ceil(n / PACK(T)) threads, each with 16 bytes.
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
