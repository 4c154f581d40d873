// The formulas of softmax for one element, for softmax.cu and cpu/softmax.cu: see softmax.cu.
#pragma once
#include "common.cuh"

#ifndef ACC  // what sums are made in: float for float and half, double for double
#define ACC float
#endif
#ifndef LOG
#define LOG 0
#endif

// What is written, from d = x - m and the row's `last`: 1 / sum, or log(sum).
__device__ __forceinline__ ACC last_of(ACC sum) { return LOG ? log(sum) : 1 / sum; }
__device__ __forceinline__ T result(ACC d, ACC last) {
  return from_float<T>(LOG ? d - last : exp_below_zero(d) * last);
}

// Each row needs one sum over its columns, of `term`; then `slope` gives gx.
__device__ __forceinline__ ACC term(ACC gy, ACC y) { return LOG ? gy : gy * y; }
__device__ __forceinline__ ACC slope(ACC gy, ACC y, ACC sum) {
  return LOG ? gy - exp_below_zero(y) * sum : y * (gy - sum);
}
