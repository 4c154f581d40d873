// Blocks take a ticket for their part of the work, so that who starts first takes the first part.
// kind: sound
/* launch
x, out, ticket = ramp(8 * 32), np.zeros(8, np.float32), np.zeros(1, np.int32)
cu("by_ticket")((8,), (32,), (out, ticket, x))
same(out, x.reshape(8, 32).sum(axis=1))
*/
extern "C" __global__ void by_ticket(float* out, int* ticket, const float* x) {
  __shared__ int part;
  if (threadIdx.x == 0) part = atomicAdd(ticket, 1);
  __syncthreads();
  float v = x[part * 32 + threadIdx.x];
  for (int d = 1; d < 32; d *= 2) v += __shfl_xor_sync(0xffffffff, v, d);
  if (threadIdx.x == 0) out[part] = v;
}
