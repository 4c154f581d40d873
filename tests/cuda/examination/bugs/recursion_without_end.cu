// A device function that calls itself and never stops.
// kind: recursion
/* launch
x, out = ramp(32), np.zeros(32, np.float32)
cu("tree")((1,), (32,), (out, x))
*/
__device__ __noinline__ float sum_from(const float* x, int i, int n) {
  volatile float mine = x[i % n];
  return mine + sum_from(x, i + 1, n) * 0.5f;  // BUG: no case ends it
}

extern "C" __global__ void tree(float* out, const float* x) {
  out[threadIdx.x] = sum_from(x, threadIdx.x, 32);
}
