// An assert in a device function, behind a barrier, that fails in one thread of one block.
// kind: assert
/* launch
x = ramp(96)
x[70] = -1
cu("roots")((3,), (32,), (x,))
*/
#include <cassert>

__device__ float root_of(float v) {
  assert(v >= 0 && "only numbers that are not negative have a root");  // BUG: x[70] is -1
  return sqrtf(v);
}

extern "C" __global__ void roots(float* x) {
  __shared__ float s[32];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  s[threadIdx.x] = x[i];
  __syncthreads();
  x[i] = root_of(s[threadIdx.x]);
}
