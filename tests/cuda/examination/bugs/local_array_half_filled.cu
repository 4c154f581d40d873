// Four sums are kept in a local array of which three are set to zero.
// kind: uninitialised local
/* launch
x, out = ramp(32 * 16), np.zeros(32, np.float32)
cu("four_sums")((1,), (32,), (out, x, 16))
*/
extern "C" __global__ void four_sums(float* out, const float* x, int cols) {
  float sum[4];
  for (int k = 0; k < 3; ++k) sum[k] = 0;
  for (int j = 0; j < cols; ++j) sum[j % 4] += x[threadIdx.x * cols + j];  // BUG: sum[3] was not set
  out[threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}
