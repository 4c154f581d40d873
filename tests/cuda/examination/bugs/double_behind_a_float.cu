// Shared memory is cut into one float and some doubles, which then begin at byte 4.
// kind: misaligned access
/* launch
x, out = ramp(32, np.float64), np.zeros(32, np.float64)
cu("halves")((1,), (32,), (out, x), shared_mem=4 + 8 * 32)
*/
extern "C" __global__ void halves(double* out, const double* x) {
  extern __shared__ __align__(16) char memory[];
  float* factor = (float*)memory;
  double* s = (double*)(memory + sizeof(float));
  int t = threadIdx.x;
  if (t == 0) *factor = 0.5f;
  s[t] = x[t];  // BUG: the address ends in 4
  __syncthreads();
  out[t] = s[31 - t] * *factor;
}
