// The usual guard, in a kernel with a barrier: the last block's rest has gone home.
// kind: divergent barrier
/* launch
x, out = ramp(100), np.zeros(100, np.float32)
cu("neighbours")((2,), (64,), (out, x, 100))
*/
extern "C" __global__ void neighbours(float* out, const float* x, int n) {
  __shared__ float s[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
  if (i >= n) return;  // BUG: 28 threads of block 1 end here
  s[t] = x[i];
  __syncthreads();  // BUG
  out[i] = s[t] + (t > 0 ? s[t - 1] : 0);
}
