// A pointer that is set on one way only.
// kind: null pointer
/* launch
x, out = ramp(40), np.zeros(40, np.float32)
cu("pick")((1,), (64,), (out, x, 40))
*/
extern "C" __global__ void pick(float* out, const float* x, int n) {
  int i = threadIdx.x;
  const float* from = nullptr;
  if (i < n / 2) from = x;
  if (i < n) out[i] = from[i];  // BUG: from is null in the upper half
}
