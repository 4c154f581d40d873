// SGD's formula for one weight with momentum. sgd.cu explains it.
#pragma once
#include "common.cuh"

#ifndef W
#define W float
#endif

__device__ __forceinline__ void update(W& w, W g, W& v, W keep, W take, W lr, W momentum, W decay,
                                       int nesterov) {
  g += decay * w;
  v = mul_add(keep, v, take * g);
  w -= lr * (nesterov ? g + momentum * v : v);
}
