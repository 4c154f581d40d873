// Rows are cleared by memset and copied by memcpy, in a local array and in global memory.
// kind: sound
/* launch
x, out = noise(32 * 6), np.full(32 * 8, np.nan, np.float32)
cu("pad_rows")((1,), (32,), (out, x, 6, 8))
same(out.reshape(32, 8), np.pad(x.reshape(32, 6), ((0, 0), (1, 1))))
*/
extern "C" __global__ void pad_rows(float* out, const float* x, int cols, int padded) {
  float row[16];
  int t = threadIdx.x;
  memset(row, 0, sizeof(row));
  memcpy(row + 1, x + t * cols, cols * sizeof(float));
  memcpy(out + t * padded, row, padded * sizeof(float));
}
