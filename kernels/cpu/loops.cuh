// Macros that make a loop faster on a CPU core: vectors, and requests to the cache. The kernels of
// this folder use them, and run only on a CPU. The kernels in the folder above have the same
// formulas without these macros.
#pragma once
#include "common.cuh"

// If the compiler should vectorise a `for` loop, write one of three macros before it. Write
// SIMD_SUM(s) if the loop adds to s, SIMD_MAX(m) if it computes a maximum m, else SIMD.
#define PRAGMA(text) _Pragma(#text)
#define SIMD PRAGMA(omp simd)
#define SIMD_SUM(...) PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define SIMD_MAX(...) PRAGMA(omp simd reduction(max : __VA_ARGS__))

// Requests elements of the next row for the cache while the current row is computed. The
// processor's prefetcher does not do this: a row of a few KiB ends before it has learned the
// pattern. The request is only a hint, so any address is allowed.
const int AHEAD = 256;  // elements between two calls of fetch. A core allows few open requests
template <typename V> __device__ __forceinline__ void fetch(const V* p, int begin, int end) {
  for (int j = begin; j < end; j += 64 / (int)sizeof(V)) __builtin_prefetch(p + j);
}
template <typename V> __device__ __forceinline__ void fetch_to_write(V* p, int begin, int end) {
  for (int j = begin; j < end; j += 64 / (int)sizeof(V)) __builtin_prefetch(p + j, 1);
}
