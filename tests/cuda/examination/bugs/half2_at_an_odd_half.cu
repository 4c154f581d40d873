// Pairs of halves from a row of odd length: every second row begins in the middle of a pair.
// kind: misaligned access
/* launch
x, out = ramp(4 * 33, np.float16), np.zeros(4, np.float32)
cu("row_sums")((4,), (1,), (out, x, 33))
*/
#include <cuda_fp16.h>

extern "C" __global__ void row_sums(float* out, const __half* x, int cols) {
  const __half* row = x + blockIdx.x * cols;
  const __half2* pairs = reinterpret_cast<const __half2*>(row);
  float sum = 0;
  for (int j = 0; j < cols / 2; ++j) {
    float2 v = __half22float2(pairs[j]);  // BUG: rows 1 and 3 begin at an odd half
    sum += v.x + v.y;
  }
  if (cols % 2) sum += __half2float(row[cols - 1]);
  out[blockIdx.x] = sum;
}
