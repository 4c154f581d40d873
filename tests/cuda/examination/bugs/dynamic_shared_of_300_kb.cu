// A launch asks for 300,000 bytes of dynamic shared memory: the largest GPU gives 227 KB.
// kind: too much shared memory
/* launch
x = ramp(64)
cu("spread")((1,), (64,), (x, 75000), shared_mem=300000)  # BUG
*/
extern "C" __global__ void spread(float* x, int n) {
  extern __shared__ float s[];
  int t = threadIdx.x;
  for (int i = t; i < n; i += blockDim.x) s[i] = i;
  __syncthreads();
  x[t] = s[n - 1 - t];
}
