// A pointer into one shared array runs on into the next.
// kind: overrun through a pointer
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("two_arrays")((1,), (64,), (out, x))
*/
extern "C" __global__ void two_arrays(float* out, const float* x) {
  __shared__ float a[64], b[64];
  int t = threadIdx.x;
  a[t] = x[t];
  b[t] = 0;
  __syncthreads();
  float* p = a + t;
  float sum = 0;
  for (int k = 0; k < 8; ++k) sum += p[k];  // BUG: the last seven threads leave a
  out[t] = sum + b[t];
}
