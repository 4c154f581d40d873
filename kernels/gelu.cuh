// GELU's P and its slope. gelu.cu explains them. The kernels of a plan use them, too
// (cpu/infer.cuh).
// Test: tests/ops/test_gelu_kernel.py
#pragma once
#include "common.cuh"

// P(x) and P'(x) of the normal distribution. For z >= 0: P(-z) = e^(-z^2/2) Q(t), with t = 1 / (1 +
// 0.275 z) and a polynomial Q. P' needs the same exponential.
__device__ __forceinline__ void normal(float x, float& p, float& slope) {
  float e = exp_below_zero(-0.5f * x * x), t = 1.0f / (1.0f + 0.275f * fabsf(x));
  float q = -0.11485808656480655f;
  q = q * t + 0.45199775294287686f;
  q = q * t - 0.3309919038699306f;
  q = q * t + 0.33393113000718f;
  q = q * t + 0.04211192675999126f;
  q = q * t + 0.11780918548828627f;
  q = q * t * e;
  p = x < 0.0f ? q : 1.0f - q;
  slope = e * 0.3989422804014327f;
}
// P = 1 / (1 + e^-2u) and P' = 2 P (1 - P) u'. With e = e^-|2u|, P (1 - P) = e / (1 + e)^2. This
// formula does not compute 1 - P, which loses digits if P is near 1.
__device__ __forceinline__ void logistic(float x, float& p, float& slope) {
  float u2 = x * (1.5957691216057308f + 0.0713548162726f * x * x);  // 2u
  float e = exp_below_zero(-fabsf(u2)), larger = 1.0f / (1.0f + e);
  p = u2 < 0.0f ? e * larger : larger;
  slope = e * larger * larger * (1.5957691216057308f + 0.2140644488178f * x * x);
}

// Returns x P(x). Generated code needs a function with one result.
__device__ __forceinline__ float gelu_normal(float x) {
  float p, slope;
  normal(x, p, slope);
  return x * p;
}
__device__ __forceinline__ float gelu_tanh(float x) {
  float p, slope;
  logistic(x, p, slope);
  return x * p;
}
