// A barrier over the grid by a counter: it waits for one arrival more than there are blocks.
// kind: endless loop
/* launch
x, out, arrived = ramp(4), np.zeros(4, np.float32), np.zeros(1, np.int32)
cu("meet")((4,), (32,), (out, x, arrived))
*/
extern "C" __global__ void meet(float* out, float* x, int* arrived) {
  if (threadIdx.x == 0) {
    x[blockIdx.x] *= 2;
    __threadfence();
    atomicAdd(arrived, 1);
    while (atomicAdd(arrived, 0) <= gridDim.x) {  // BUG: should be <
    }
    __threadfence();
    out[blockIdx.x] = ((volatile float*)x)[(blockIdx.x + 1) % gridDim.x];
  }
}
