// An array of pointers is used one entry too far: the bits found there are no pointer.
// kind: wild write
/* launch
out = np.zeros(64, np.float32)
cu("two_rows")((1,), (32,), (out,))
*/
extern "C" __global__ void two_rows(float* out) {
  struct {
    float* row[2];
    unsigned long long salt;
  } table;
  table.row[0] = out;
  table.row[1] = out + 32;
  table.salt = 0x123456789abcdULL + threadIdx.x;
  float** row = table.row;
  int last = 2 + (threadIdx.x >> 6);
  for (int r = 0; r <= last; ++r)
    row[r][threadIdx.x] = r;  // BUG: r reaches 2, behind the table's two rows
}
