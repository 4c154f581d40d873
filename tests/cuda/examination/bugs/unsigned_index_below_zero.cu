// The index of the left neighbour, unsigned: before element 0 comes element 4,294,967,295.
// kind: integer overflow
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("left")((1,), (64,), (out, x, 64))
*/
extern "C" __global__ void left(float* out, const float* x, unsigned n) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned before = i - 1;  // BUG: 0 - 1
  if (i < n) out[i] = x[i] - x[before];  // BUG
}
