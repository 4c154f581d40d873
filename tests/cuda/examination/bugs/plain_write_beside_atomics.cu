// All threads add atomically to a counter that one of them sets to zero at the same time.
// kind: race
/* launch
count, x = np.full(1, 99, np.int32), noise(256)
cu("count_positive")((2,), (128,), (count, x))
*/
extern "C" __global__ void count_positive(int* count, const float* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i == 0) *count = 0;  // BUG: block 1 may have counted already
  __syncthreads();
  __threadfence();
  if (x[i] > 0) atomicAdd(count, 1);  // BUG
}
