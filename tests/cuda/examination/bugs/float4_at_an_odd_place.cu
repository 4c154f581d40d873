// Four floats at once from an address that is no multiple of 16.
// kind: misaligned access
/* launch
x, out = ramp(260), np.zeros(256, np.float32)
cu("copy4")((1,), (64,), (out, x))
*/
extern "C" __global__ void copy4(float* out, const float* x) {
  int t = threadIdx.x;
  float4 v = *(const float4*)(x + 1 + 4 * t);  // BUG: x + 1
  ((float4*)out)[t] = v;
}
