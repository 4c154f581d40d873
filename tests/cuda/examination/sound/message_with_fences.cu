// The block that begins second waits for the first one's flag: fences stand on both sides, and the
// blocks number themselves in the order in which they begin.
// kind: sound
/* launch
box, flag, out = np.zeros(32, np.float32), np.zeros(1, np.int32), np.zeros(32, np.float32)
ticket = np.zeros(1, np.int32)
cu("send")((2,), (32,), (out, box, flag, ticket))
same(out, np.arange(32) ** 2)
*/
__device__ void raise(int* flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicExch(flag, 1);
  }
}

__device__ void wait(int* flag) {
  if (threadIdx.x == 0) {
    while (atomicAdd(flag, 0) == 0) {
    }
    __threadfence();
  }
  __syncthreads();
}

extern "C" __global__ void send(float* out, float* box, int* flag, int* ticket) {
  __shared__ int number;
  int t = threadIdx.x;
  if (t == 0) number = atomicAdd(ticket, 1);
  __syncthreads();
  if (number == 0) {
    box[t] = (float)(t * t);
    raise(flag);
  } else {
    wait(flag);
    out[t] = box[t];
  }
}
