// What an element is multiplied by, for dropout.cu and cpu/dropout.cu.
#pragma once
#include "common.cuh"

// What x is multiplied by: a product, because a branch on a random number is guessed wrong half the
// time. p = 1 gives the threshold 2^32, which has no place in 32 bits: then scale is 0.
__device__ __forceinline__ float kept(unsigned int draw, unsigned int threshold, float scale) {
  return scale * (float)(draw >= threshold);
}
