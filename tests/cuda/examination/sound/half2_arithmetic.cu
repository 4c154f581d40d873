// Pairs of halves: multiply-add, a quotient and a comparison, two numbers an instruction.
// kind: sound
/* launch
x, y = (noise(128, seed=1)).astype(np.float16), (abs(noise(128, seed=2)) + 1).astype(np.float16)
out = np.zeros(128, np.float16)
cu("pairs")((1,), (64,), (out, x, y))
want = np.maximum(x.astype(np.float32) * 2 + y, 0).astype(np.float16) / y
same(out.astype(np.float32), want.astype(np.float32), rtol=2e-3, atol=1e-3)
*/
#include <cuda_fp16.h>

extern "C" __global__ void pairs(__half2* out, const __half2* x, const __half2* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  __half2 v = __hfma2(x[i], __float2half2_rn(2.0f), y[i]);
  float2 f = __half22float2(v);
  v = __floats2half2_rn(fmaxf(f.x, 0), fmaxf(f.y, 0));
  out[i] = __h2div(v, y[i]);
}
