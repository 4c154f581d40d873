// The divisor is a number of the block that thread 0 rounds down to zero.
// kind: division by zero
/* launch
x = np.arange(20, dtype=np.int32)
cu("split")((1,), (32,), (x, 20))
*/
extern "C" __global__ void split(int* x, int n) {
  __shared__ unsigned share;
  if (threadIdx.x == 0) share = n / blockDim.x;
  __syncthreads();
  if (threadIdx.x < n) x[threadIdx.x] = threadIdx.x / share;  // BUG: 20 / 32 is 0
}
