// The formula of LAMB for one weight, for lamb.cu and cpu/lamb.cu: see lamb.cu.
#pragma once
#include "common.cuh"

#ifndef W
#define W float
#endif

__device__ __forceinline__ W direction(W w, W m, W v, W first, W root, W inside, W outside,
                                       W decay) {
  return first * m / (sqrt(root * root * v + inside) + outside) + decay * w;
}
