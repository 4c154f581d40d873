// A shuffle of all 32 lanes, behind a guard that sends twelve of them home.
// kind: wrong shuffle
/* launch
x, out = ramp(20), np.zeros(1, np.float32)
cu("sum")((1,), (32,), (out, x, 20))
*/
extern "C" __global__ void sum(float* out, const float* x, int n) {
  int t = threadIdx.x;
  if (t >= n) return;
  float v = x[t];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);  // BUG
  if (t == 0) *out = v;
}
