// A running sum over blocks: each takes a ticket, so the block it waits for has always begun.
// Source: Merrill & Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016).
// kind: sound
/* launch
x, out = ramp(8 * 32), np.zeros(8 * 32, np.float32)
ticket, ready = np.zeros(1, np.int32), np.zeros(8, np.int32)
totals = np.zeros(8, np.float32)
cu("scan")((8,), (32,), (out, x, ticket, ready, totals))
same(out, np.cumsum(x))
*/
extern "C" __global__ void scan(float* out, const float* x, int* ticket, int* ready,
                                volatile float* totals) {
  __shared__ int part;
  __shared__ float before;
  int lane = threadIdx.x;
  if (lane == 0) part = atomicAdd(ticket, 1);
  __syncthreads();
  float v = x[part * 32 + lane];
  for (int d = 1; d < 32; d *= 2) {
    float left = __shfl_up_sync(0xffffffff, v, d);
    if (lane >= d) v += left;
  }
  if (lane == 31) {
    float sum = 0;
    if (part > 0) {
      while (atomicAdd(&ready[part - 1], 0) == 0) {
      }
      __threadfence();
      sum = totals[part - 1];
    }
    before = sum;
    totals[part] = sum + v;
    __threadfence();
    atomicExch(&ready[part], 1);
  }
  __syncthreads();
  out[part * 32 + lane] = before + v;
}
