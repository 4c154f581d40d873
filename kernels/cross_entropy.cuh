// The formulas of cross entropy for one row and one element. cross_entropy.cu explains them.
#pragma once
#include "common.cuh"

#ifndef ACC  // the type of sums: float for float and half, double for double
#define ACC float
#endif

// Returns the loss of a row. m: its maximum, sum: the sum of e^(x - m), picked: x at the target,
// mean: the mean of x. The formula subtracts m from picked and from mean before other numbers are
// added, because m may be large and the differences small.
__device__ __forceinline__ ACC row_loss(ACC m, ACC sum, ACC picked, ACC mean, ACC smoothing) {
  ACC loss = log(sum) - (1 - smoothing) * (picked - m);
  return smoothing > 0 ? loss - smoothing * (mean - m) : loss;
}

__device__ __forceinline__ T slope(ACC g, ACC x, ACC lse, ACC wanted) {
  return from_float<T>(g * (exp_below_zero(x - lse) - wanted));
}
