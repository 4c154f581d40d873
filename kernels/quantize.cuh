// The formulas of int8 quantisation, for quantize.cu and cpu/quantize.cu.
#pragma once
#include "common.cuh"

// Returns the bits of |x| as an int. Of two floats >= 0, the larger one has the larger int. The int
// of NaN is larger than the int of infinity. So if one number is NaN, the maximum is NaN.
__device__ __forceinline__ int magnitude(float x) { return __float_as_int(fabsf(x)); }

__device__ __forceinline__ signed char to_int8(float x, float scale) {
  float q = rintf(scale > 0 ? x / scale : 0.0f);
  // x / scale can be rounded to a number just above 127
  return (signed char)(int)fminf(fmaxf(q, -127.0f), 127.0f);
}
