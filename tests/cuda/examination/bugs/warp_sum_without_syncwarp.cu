// The unrolled end of a sum as it was written before 2017, when a warp moved in step.
// kind: race in a warp
/* launch
x, out = ramp(64), np.zeros(1, np.float32)
cu("sum")((1,), (64,), (out, x))
*/
extern "C" __global__ void sum(float* out, const float* x) {
  __shared__ volatile float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    s[t] += s[t + 32];
    if (t < 16) s[t] += s[t + 16];  // BUG: from here on lanes read what lanes write
    if (t < 8) s[t] += s[t + 8];    // BUG
    if (t < 4) s[t] += s[t + 4];    // BUG
    if (t < 2) s[t] += s[t + 2];    // BUG
    if (t < 1) s[t] += s[t + 1];    // BUG
  }
  if (t == 0) *out = s[0];
}
