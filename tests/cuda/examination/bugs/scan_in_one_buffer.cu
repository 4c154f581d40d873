// A scan by doubling in one array: the sum is written while the neighbour still reads.
// kind: missing barrier
/* launch
x = ramp(128)
cu("scan")((1,), (128,), (x,))
*/
extern "C" __global__ void scan(float* x) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int d = 1; d < 128; d *= 2) {
    if (t >= d) s[t] += s[t - d];  // BUG: read, barrier, write, barrier
    __syncthreads();
  }
  x[t] = s[t];
}
