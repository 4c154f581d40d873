// The kernel uses dynamic shared memory, and the launch gives it none.
// kind: wrong launch
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("reverse")((1,), (64,), (out, x))  # BUG: shared_mem=64 * 4 is missing
*/
extern "C" __global__ void reverse(float* out, const float* x) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  out[t] = s[63 - t];
}
