// LAMB's formula for one weight. eps is added inside of the square root (`inside`) or outside of it
// (`outside`), and the other number is 0. Used by lamb.cu (see there) and cpu/lamb.cu.
#pragma once
#include "common.cuh"

#ifndef W
#define W float
#endif

__device__ __forceinline__ W direction(W w, W m, W v, W first, W root, W inside, W outside,
                                       W decay) {
  return first * m / (sqrt(root * root * v + inside) + outside) + decay * w;
}
