// Decides which elements are large, for topk_mask.cu and cpu/topk_mask.cu.
#pragma once
#include "common.cuh"

// Returns 1 if |x| >= threshold, or if x is nan. A nan must be sent: without compression, all ranks
// get the nan, too.
static __device__ int is_large(T x, float threshold) {
  return !(fabsf(to_float(x)) < threshold);
}
