// The scale and the bias of an int8 product, for int8_linear.cu and cpu/int8_linear.cu.
#pragma once
#include "common.cuh"

// Returns the integer sum times the two scales, plus the bias.
__device__ __forceinline__ T real(int sum, const float* x_scale, const float* w_scale,
                                  const float* bias, int o, int step) {
  float y = (float)sum * (x_scale[0] * w_scale[o * step]);
  return from_float<T>(bias ? y + bias[o] : y);
}
