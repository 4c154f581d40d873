// AdamW's formula for one weight. adamw.cu explains it.
#pragma once
#include "common.cuh"

#ifndef W
#define W float
#endif

// Updates one weight. t is the number of updates: step = lr / (1 - b1^t), inv_root = 1 / sqrt(1 -
// b2^t).
__device__ __forceinline__ void update(W& w, W g, W& m, W& v, W step, W inv_root, W b1,
                                       W one_minus_b1, W b2, W one_minus_b2, W eps, W shrink,
                                       W l2) {
  // The results are stored only at the end. The compiler must assume that the arrays overlap. After
  // an early store it must load w and m again.
  const W before = w;
  g += l2 * before;
  const W first = mul_add(b1, m, one_minus_b1 * g),
          second = mul_add(b2, v, one_minus_b2 * g * g);
  m = first;
  v = second;
  w = mul_add(shrink, before, -(step * first / (sqrt(second) * inv_root + eps)));
}
