// The stride of a row is given in bytes and used in elements, as a 64-bit number.
// kind: wild write
/* launch
out = np.zeros((64, 64), np.float32)
cu("rows")((1,), (64,), (out, 64 * 4, 64))
*/
extern "C" __global__ void rows(float* out, int stride, int n) {
  int row = threadIdx.x;
  float* mine = out + (long long)row * stride * 1000000LL;
  for (int j = 0; j < n; ++j) mine[j] = row;  // BUG: far from the array for every row but the first
}
