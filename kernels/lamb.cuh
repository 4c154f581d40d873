// LAMB's formula for one weight. Used by lamb.cu (see there) and cpu/lamb.cu.
#pragma once
#include "common.cuh"

#ifndef W
#define W float
#endif

__device__ __forceinline__ W direction(W w, W m, W v, W first, W root, W inside, W outside,
                                       W decay) {
  return first * m / (sqrt(root * root * v + inside) + outside) + decay * w;
}
