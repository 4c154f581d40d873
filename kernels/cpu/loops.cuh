// What tunes a loop for a CPU core: vectors, and requests to its cache. The kernels of this folder
// are made of it. They run on a CPU alone; the same formulas for a GPU, and for a reader, are in the
// folder above.
#pragma once
#include "common.cuh"

// A loop that the compiler should vectorise: SIMD before `for`; SIMD_SUM(s) if the loop adds to s,
// SIMD_MAX(m) if it looks for the largest.
#define PRAGMA(text) _Pragma(#text)
#define SIMD PRAGMA(omp simd)
#define SIMD_SUM(...) PRAGMA(omp simd reduction(+ : __VA_ARGS__))
#define SIMD_MAX(...) PRAGMA(omp simd reduction(max : __VA_ARGS__))

// Asks the cache for elements of the next row while this one is computed: rows of a few KiB end
// before the processor has guessed where memory is wanted next. A hint, for which any address will
// do.
const int AHEAD = 256;  // elements between two calls: more requests than this a core cannot hold
template <typename V> __device__ __forceinline__ void fetch(const V* p, int begin, int end) {
  for (int j = begin; j < end; j += 64 / (int)sizeof(V)) __builtin_prefetch(p + j);
}
template <typename V> __device__ __forceinline__ void fetch_to_write(V* p, int begin, int end) {
  for (int j = begin; j < end; j += 64 / (int)sizeof(V)) __builtin_prefetch(p + j, 1);
}
