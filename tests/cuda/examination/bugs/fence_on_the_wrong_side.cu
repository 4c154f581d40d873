// There is a fence, but it stands behind the counter instead of before it.
// kind: missing fence
/* launch
x, parts, out = ramp(8), np.zeros(8, np.float32), np.zeros(1, np.float32)
ticket = np.zeros(1, np.int32)
cu("largest")((8,), (1,), (out, parts, ticket, x))
*/
extern "C" __global__ void largest(float* out, volatile float* parts, int* ticket, const float* x) {
  parts[blockIdx.x] = 2 * x[blockIdx.x];  // BUG: the fence belongs here
  int before = atomicAdd(ticket, 1);
  __threadfence();
  if (before == gridDim.x - 1) {
    float top = parts[0];
    for (int b = 1; b < gridDim.x; ++b) top = fmaxf(top, parts[b]);  // BUG
    *out = top;
  }
}
