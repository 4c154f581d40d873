// Dropout's factor for one element. Used by dropout.cu and cpu/dropout.cu.
#pragma once
#include "common.cuh"

// Returns the factor of x: 0 or scale. The caller multiplies x by this factor. A branch in place of
// the factor would be slower: the numbers are random, so the processor would often predict the
// branch wrongly. p = 1 gives the threshold 2^32, which does not fit in 32 bits: then scale is 0.
__device__ __forceinline__ float kept(unsigned int draw, unsigned int threshold, float scale) {
  return scale * (float)(draw >= threshold);
}
