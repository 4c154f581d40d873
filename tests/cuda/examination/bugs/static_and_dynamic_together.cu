// 40 KB of static and 200 KB of dynamic shared memory: each would do, both together do not.
// kind: too much shared memory
/* launch
x = ramp(64)
cu("two")((1,), (64,), (x, 50000), shared_mem=200000)  # BUG
*/
extern "C" __global__ void two(float* x, int n) {
  __shared__ float fixed[10000];
  extern __shared__ float more[];
  int t = threadIdx.x;
  for (int i = t; i < 10000; i += blockDim.x) fixed[i] = x[t];
  for (int i = t; i < n; i += blockDim.x) more[i] = x[t];
  __syncthreads();
  x[t] = fixed[64 * t] + more[64 * t];
}
