// A scan that goes up and down a tree, in place, over places spread by one in 32 (no bank meets
// another), for a length that is no power of two.
// Source: Blelloch, "Prefix Sums and Their Applications" (1990).
// kind: sound
/* launch
x, y = ramp(100), np.zeros(100, np.float32)
cu("scan")((1,), (64,), (y, x, 100), shared_mem=4 * 132)
same(y, np.cumsum(x) - x)
*/
__device__ int spread(int i) { return i + i / 32; }

extern "C" __global__ void scan(float* y, const float* x, int n) {
  extern __shared__ float tree[];
  const int size = 2 * blockDim.x;
  for (int i = threadIdx.x; i < size; i += blockDim.x) tree[spread(i)] = i < n ? x[i] : 0;
  int step = 1;
  for (int pairs = blockDim.x; pairs > 0; pairs /= 2, step *= 2) {
    __syncthreads();
    if (threadIdx.x < pairs) {
      int left = step * (2 * threadIdx.x + 1) - 1;
      tree[spread(left + step)] += tree[spread(left)];
    }
  }
  if (threadIdx.x == 0) tree[spread(size - 1)] = 0;
  for (int pairs = 1; pairs <= blockDim.x; pairs *= 2) {
    step /= 2;
    __syncthreads();
    if (threadIdx.x < pairs) {
      int left = step * (2 * threadIdx.x + 1) - 1;
      float v = tree[spread(left)];
      tree[spread(left)] = tree[spread(left + step)];
      tree[spread(left + step)] += v;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = tree[spread(i)];
}
