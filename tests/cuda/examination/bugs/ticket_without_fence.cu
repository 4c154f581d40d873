// The block with the last ticket adds up what all blocks have left; nobody fenced what they left.
// kind: missing fence
/* launch
parts, tickets, total = np.zeros(4, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
cu("total")((4,), (32,), (total, parts, tickets, ramp(128)))
*/
extern "C" __global__ void total(float* total, float* parts, unsigned* tickets, const float* x) {
  float v = x[blockIdx.x * 32 + threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
  if (threadIdx.x != 0) return;
  parts[blockIdx.x] = v;  // BUG: no __threadfence() between this and the ticket
  if (atomicInc(tickets, gridDim.x - 1) == gridDim.x - 1) {
    float sum = 0;
    for (int b = 0; b < gridDim.x; ++b) sum += parts[b];  // BUG: may be old
    *total = sum;
  }
}
