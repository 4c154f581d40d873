// The barrier stands inside the if: the upper half of the threads never comes there.
// kind: divergent barrier
/* launch
x, out = ramp(128), np.zeros(1, np.float32)
cu("sum")((1,), (128,), (out, x))
*/
extern "C" __global__ void sum(float* out, const float* x) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int d = 64; d > 0; d /= 2) {
    if (t < d) {
      s[t] += s[t + d];
      __syncthreads();  // BUG: only threads below d
    }
  }
  if (t == 0) *out = s[0];
}
