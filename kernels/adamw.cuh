// AdamW's formula for one weight. Used by adamw.cu (see there) and cpu/adamw.cu.
#pragma once
#include "common.cuh"

#ifndef W
#define W float
#endif

// Updates one weight. Two factors depend on the step count: step, and inv_root = 1 / sqrt(1 -
// b2^t).
__device__ __forceinline__ void update(W& w, W g, W& m, W& v, W step, W inv_root, W b1,
                                       W one_minus_b1, W b2, W one_minus_b2, W eps, W shrink,
                                       W l2) {
  // Results stay in registers until the end. The compiler cannot know that the arrays do not
  // overlap, so after a store it would load w and m again.
  const W before = w;
  g += l2 * before;
  const W first = mul_add(b1, m, one_minus_b1 * g),
          second = mul_add(b2, v, one_minus_b2 * g * g);
  m = first;
  v = second;
  w = mul_add(shrink, before, -(step * first / (sqrt(second) * inv_root + eps)));
}
