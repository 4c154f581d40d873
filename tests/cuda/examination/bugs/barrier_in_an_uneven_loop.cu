// Each thread goes round as often as it has elements, with a barrier each time.
// kind: divergent barrier
/* launch
x, out = ramp(100), np.zeros(64, np.float32)
cu("stride")((1,), (64,), (out, x, 100))
*/
extern "C" __global__ void stride(float* out, const float* x, int n) {
  __shared__ float s[64];
  int t = threadIdx.x;
  float sum = 0;
  for (int i = t; i < n; i += blockDim.x) {
    s[t] = x[i];
    __syncthreads();  // BUG: the second time 36 of 64 threads come
    sum += s[t];
    __syncthreads();  // BUG
  }
  out[t] = sum;
}
