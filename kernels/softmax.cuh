// Softmax's formulas for one element. Used by softmax.cu (see there) and cpu/softmax.cu.
#pragma once
#include "common.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif
#ifndef LOG
#define LOG 0
#endif

// last_of() makes a number for each row: 1 / sum, or log(sum). The result of an element is computed
// from d = x - m and from this number.
__device__ __forceinline__ ACC last_of(ACC sum) { return LOG ? log(sum) : 1 / sum; }
__device__ __forceinline__ T result(ACC d, ACC last) {
  return from_float<T>(LOG ? d - last : exp_below_zero(d) * last);
}

// Backward needs one sum over the columns of each row, the sum of `term`. Then `slope` gives gx.
__device__ __forceinline__ ACC term(ACC gy, ACC y) { return LOG ? gy : gy * y; }
__device__ __forceinline__ ACC slope(ACC gy, ACC y, ACC sum) {
  return LOG ? gy - exp_below_zero(y) * sum : y * (gy - sum);
}
