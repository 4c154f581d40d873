// Rows of seven floats are read in pairs: every second row starts at an odd float.
// kind: misaligned access
/* launch
x, out = ramp(4 * 7), np.zeros(4, np.float32)
cu("row_sums")((1,), (4,), (out, x))
*/
__device__ float2 pair(const float* row, int k) {
  return reinterpret_cast<const float2*>(row)[k];  // BUG: wants an address divisible by 8
}

extern "C" __global__ void row_sums(float* out, const float* x) {
  const float* row = x + threadIdx.x * 7;
  float sum = row[6];
  for (int k = 0; k < 3; ++k) {
    float2 two = pair(row, k);
    sum += two.x + two.y;
  }
  out[threadIdx.x] = sum;
}
