// Softmax's formulas for one element. softmax.cu explains them.
#pragma once
#include "common.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif
#ifndef LOG
#define LOG 0
#endif

// last_of() returns one number for each row: 1 / sum, or log(sum) if LOG is 1. result() computes y
// of an element from d = x - m and this number.
__device__ __forceinline__ ACC last_of(ACC sum) { return LOG ? log(sum) : 1 / sum; }
__device__ __forceinline__ T result(ACC d, ACC last) {
  return from_float<T>(LOG ? d - last : exp_below_zero(d) * last);
}

// Backward first adds up term() over the columns of a row. With this sum, slope() returns gx of an
// element.
__device__ __forceinline__ ACC term(ACC gy, ACC y) { return LOG ? gy : gy * y; }
__device__ __forceinline__ ACC slope(ACC gy, ACC y, ACC sum) {
  return LOG ? gy - exp_below_zero(y) * sum : y * (gy - sum);
}
