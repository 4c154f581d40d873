// LAMB's formula for one weight. lamb.cu explains it. If eps is added inside of the square root,
// `inside` is eps and `outside` is 0. If eps is added outside of it, `outside` is eps and `inside`
// is 0.
#pragma once
#include "common.cuh"

#ifndef W
#define W float
#endif

__device__ __forceinline__ W direction(W w, W m, W v, W first, W root, W inside, W outside,
                                       W decay) {
  return first * m / (sqrt(root * root * v + inside) + outside) + decay * w;
}
