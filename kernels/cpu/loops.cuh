// Tools to tune a loop for a CPU core: vectors, and requests to its cache. The kernels of this
// folder use them, and run only on a CPU. The folder above has the same formulas in a simpler form,
// for a GPU.
#pragma once
#include "common.cuh"

// Write one of three macros before a `for` that the compiler should vectorise: SIMD_SUM(s) if the
// loop adds to s, SIMD_MAX(m) if the loop computes a maximum m, else SIMD.
#define PRAGMA(text) _Pragma(#text)
#define SIMD PRAGMA(omp simd)
#define SIMD_SUM(...) PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define SIMD_MAX(...) PRAGMA(omp simd reduction(max : __VA_ARGS__))

// Asks the cache for elements of the next row while this row is computed. A row of a few KiB ends
// before the processor's prefetcher has learned the pattern. The request is only a hint, so any
// address is allowed.
const int AHEAD = 256;  // elements between two calls of fetch. A core has no more open requests
template <typename V> __device__ __forceinline__ void fetch(const V* p, int begin, int end) {
  for (int j = begin; j < end; j += 64 / (int)sizeof(V)) __builtin_prefetch(p + j);
}
template <typename V> __device__ __forceinline__ void fetch_to_write(V* p, int begin, int end) {
  for (int j = begin; j < end; j += 64 / (int)sizeof(V)) __builtin_prefetch(p + j, 1);
}
