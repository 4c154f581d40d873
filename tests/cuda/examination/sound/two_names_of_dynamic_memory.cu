// Two kernels of one file know the dynamic shared memory by two names and two types.
// kind: sound
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("reverse_floats")((1,), (64,), (out, x), shared_mem=64 * 4)
same(out, x[::-1])
keys, counts = (np.arange(200) % 9).astype(np.int32), np.zeros(9, np.int32)
cu("histogram")((2,), (100,), (counts, keys, 9), shared_mem=9 * 4)
same(counts, np.bincount(keys, minlength=9))
*/
extern "C" __global__ void reverse_floats(float* out, const float* x) {
  extern __shared__ float numbers[];
  numbers[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = numbers[blockDim.x - 1 - threadIdx.x];
}

extern "C" __global__ void histogram(int* counts, const int* keys, int n_bins) {
  extern __shared__ int bins[];
  int t = threadIdx.x;
  if (t < n_bins) bins[t] = 0;
  __syncthreads();
  atomicAdd(&bins[keys[blockIdx.x * blockDim.x + t]], 1);
  __syncthreads();
  if (t < n_bins) atomicAdd(&counts[t], bins[t]);
}
