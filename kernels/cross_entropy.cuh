// The formulas of cross entropy for one row and one element, for cross_entropy.cu and
// cpu/cross_entropy.cu: see cross_entropy.cu.
#pragma once
#include "common.cuh"

#ifndef ACC  // what sums are made in: float for float and half, double for double
#define ACC float
#endif

// The loss of a row from its maximum m, the sum of e^(x - m), its target's x and its mean.
// Differences to m first: m may be large, and what is left small.
__device__ __forceinline__ ACC row_loss(ACC m, ACC sum, ACC picked, ACC mean, ACC smoothing) {
  ACC loss = log(sum) - (1 - smoothing) * (picked - m);
  return smoothing > 0 ? loss - smoothing * (mean - m) : loss;
}

__device__ __forceinline__ T slope(ACC g, ACC x, ACC lse, ACC wanted) {
  return from_float<T>(g * (exp_below_zero(x - lse) - wanted));
}
