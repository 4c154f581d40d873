// Each block takes a lock with atomicCAS, and none gives it back.
// kind: endless loop
/* launch
total, lock, x = np.zeros(1, np.float32), np.zeros(1, np.int32), ramp(8)
cu("locked_sum")((8,), (32,), (total, lock, x))
*/
extern "C" __global__ void locked_sum(float* total, int* lock, const float* x) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {  // BUG: the second block waits for ever
    }
    __threadfence();
    *(volatile float*)total += x[blockIdx.x];
    __threadfence();
  }
}
