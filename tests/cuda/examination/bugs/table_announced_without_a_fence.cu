// A block fills a table, meets at a barrier and raises a flag. The barrier orders its own threads;
// for the other block, which reads the table, there is no fence.
// kind: missing fence
/* launch
table, flag, out = np.zeros(32, np.float32), np.zeros(2, np.int32), np.zeros(32, np.float32)
cu("fill_and_use")((2,), (32,), (out, table, flag))
*/
extern "C" __global__ void fill_and_use(float* out, float* table, int* flag) {
  __shared__ int turn;
  if (threadIdx.x == 0) turn = atomicAdd(flag, 1);
  __syncthreads();
  if (turn == 0) {
    table[threadIdx.x] = sqrtf(threadIdx.x);  // BUG: no __threadfence() behind it
    __syncthreads();
    if (threadIdx.x == 0) atomicExch(flag + 1, 1);  // BUG
  } else {
    if (threadIdx.x == 0)
      while (atomicAdd(flag + 1, 0) == 0) {}
    __syncthreads();
    out[threadIdx.x] = table[threadIdx.x];  // BUG: may be old
  }
}
