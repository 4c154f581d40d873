// Sums in halves by atomicAdd: small whole numbers, so that no order of adding rounds.
// kind: sound
/* launch
x, out = (np.arange(96) % 5).astype(np.float16), np.zeros(4, np.float16)
cu("quarter_sums")((3,), (32,), (out, x))
same(out, x.reshape(24, 4).sum(0))
*/
#include <cuda_fp16.h>

extern "C" __global__ void quarter_sums(__half* out, const __half* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&out[i % 4], x[i]);
}
