// bfloat16 in memory, float in registers; the launch hands over its bits as whole numbers.
// kind: sound
/* launch
x = noise(64 * 4)
bits = (x.view(np.uint32) >> 16).astype(np.uint16)  # cut off, not rounded
cut = (bits.astype(np.uint32) << 16).view(np.float32)
out = np.zeros(64, np.float32)
cu("row_sums")((1,), (64,), (out, bits, 4))
same(out, cut.reshape(64, 4).sum(1), rtol=1e-5, atol=1e-5)
*/
#include <cuda_bf16.h>

typedef __nv_bfloat16 bf16;

extern "C" __global__ void row_sums(float* out, const unsigned short* bits, int cols) {
  const bf16* row = reinterpret_cast<const bf16*>(bits) + threadIdx.x * cols;
  float sum = 0;
  for (int j = 0; j < cols; ++j) sum += __bfloat162float(row[j]);
  out[threadIdx.x] = sum;
}
