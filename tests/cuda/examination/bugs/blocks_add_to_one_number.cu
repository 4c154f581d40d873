// Each block adds its sum to one number in global memory by += .
// kind: race
/* launch
x, out = ramp(256), np.zeros(1, np.float32)
cu("total")((8,), (32,), (out, x))
*/
extern "C" __global__ void total(float* out, const float* x) {
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xffffffff, v, d);
  if (threadIdx.x == 0) *out += v;  // BUG: wants atomicAdd
}
