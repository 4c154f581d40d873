// A function fills the array it is given, one element more than there is.
// kind: overrun through a pointer
/* launch
x, out = ramp(32), np.zeros(32, np.float32)
cu("powers")((1,), (32,), (out, x, 8))
*/
__device__ __noinline__ void fill(float* p, float x, int n) {
  float power = 1;
  for (int k = 0; k <= n; ++k) {
    p[k] = power;  // BUG: k reaches n
    power *= x;
  }
}

extern "C" __global__ void powers(float* out, const float* x, int n) {
  float p[8];
  fill(p, x[threadIdx.x] / 32, n);
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += p[k];
  out[threadIdx.x] = sum;
}
