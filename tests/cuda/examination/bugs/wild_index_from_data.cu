// A gather writes where the data says, and nobody has checked the data.
// kind: wild write
/* launch
where = np.arange(64, dtype=np.int32)
where[17] = 1 << 30
out = np.zeros(64, np.float32)
cu("scatter")((1,), (64,), (out, where, 64))
*/
extern "C" __global__ void scatter(float* out, const int* where, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[where[i]] = i;  // BUG: where[17] is 2^30
}
