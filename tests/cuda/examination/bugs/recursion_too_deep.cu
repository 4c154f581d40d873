// A recursion that ends, after a million calls: no GPU thread has a stack for them.
// kind: recursion
/* launch
out = np.zeros(32, np.float32)
cu("harmonic")((1,), (32,), (out, 1000000))
*/
__device__ __noinline__ float harmonic_of(int n) {
  volatile float term = 1.0f / n;
  if (n == 1) return term;
  return harmonic_of(n - 1) + term;  // BUG: a call for each of a million terms
}

extern "C" __global__ void harmonic(float* out, int n) {
  out[threadIdx.x] = harmonic_of(n);
}
