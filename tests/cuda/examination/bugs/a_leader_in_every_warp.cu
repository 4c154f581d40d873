// One thread of each warp, not of the block, writes the block's number: the last one wins.
// kind: race
/* launch
x, out = noise(256), np.zeros(2, np.float32)
cu("largest")((2,), (128,), (out, x))
*/
extern "C" __global__ void largest(float* out, const float* x) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_down_sync(0xffffffffu, v, d));
  if ((threadIdx.x & 31) == 0) out[blockIdx.x] = v;  // BUG: four warps, one place
}
