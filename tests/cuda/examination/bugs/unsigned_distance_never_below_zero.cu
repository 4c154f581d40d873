// The halving distance of a sum is unsigned: it is never below zero, and stays 0 for ever.
// kind: endless loop
/* launch
x, out = ramp(32), np.zeros(1, np.float32)
cu("total")((1,), (32,), (out, x))
*/
extern "C" __global__ void total(float* out, const float* x) {
  float v = x[threadIdx.x];
  for (unsigned d = 16; d >= 0; d /= 2) {               // BUG: d > 0 is meant
    float other = __shfl_down_sync(0xffffffffu, v, d);  // BUG
    if (threadIdx.x < d) v += other;                    // BUG
  }
  if (threadIdx.x == 0) *out = v;
}
