// The sum begins with whatever was in the register.
// kind: uninitialised local
/* launch
x, out = ramp(64 * 8), np.zeros(64, np.float32)
cu("row_sums")((1,), (64,), (out, x, 64, 8))
*/
extern "C" __global__ void row_sums(float* out, const float* x, int rows, int cols) {
  int row = threadIdx.x;
  if (row >= rows) return;
  float sum;
  for (int j = 0; j < cols; ++j) sum += x[row * cols + j];  // BUG: sum has no first value
  out[row] = sum;
}
