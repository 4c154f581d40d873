// The largest value and where it is, by one atomicMax on both in 64 bits.
// kind: sound
/* launch
x = np.abs(noise(300))
best = np.zeros(1, np.uint64)
cu("place_of_largest")((3,), (128,), (best, x, 300))
same(int(best[0]) & 0xffffffff, x.argmax())
*/
__device__ unsigned long long pack(float value, unsigned place) {
  return (unsigned long long)__float_as_uint(value) << 32 | place;
}

extern "C" __global__ void place_of_largest(unsigned long long* best, const float* x, int n) {
  __shared__ unsigned long long of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicMax(&of_block, pack(x[i], i));
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(best, of_block);
}
