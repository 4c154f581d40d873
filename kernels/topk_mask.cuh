// Which elements are large, for topk_mask.cu and cpu/topk_mask.cu.
#pragma once
#include "common.cuh"

// Not a number is large, too: what a sum would spread to all ranks must travel.
static __device__ int is_large(T x, float threshold) {
  return !(fabsf(to_float(x)) < threshold);
}
