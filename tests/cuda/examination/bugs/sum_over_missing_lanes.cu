// A block of 40: the second warp has 8 lanes, and is summed up as if it had 32.
// kind: wrong shuffle
/* launch
x, out = ramp(40), np.zeros(2, np.float32)
cu("warp_sums")((1,), (40,), (out, x, 40))
*/
extern "C" __global__ void warp_sums(float* out, const float* x, int n) {
  int i = threadIdx.x;
  if (i >= n) return;
  float v = x[i];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);  // BUG: lanes 8 to 31
  if (i % 32 == 0) out[i / 32] = v;
}
