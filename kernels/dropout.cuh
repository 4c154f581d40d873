// Dropout's factor for one element, for dropout.cu and cpu/dropout.cu.
#pragma once
#include "common.cuh"

// Returns the factor of x: 0 or scale. The caller multiplies x by this factor. A branch in place of
// the factor is slower: draws are random, so the processor often predicts the branch wrongly. For p
// = 1 the threshold is 2^32, which does not fit in 32 bits. Then the caller passes the scale 0.
__device__ __forceinline__ float kept(unsigned int draw, unsigned int threshold, float scale) {
  return scale * (float)(draw >= threshold);
}
