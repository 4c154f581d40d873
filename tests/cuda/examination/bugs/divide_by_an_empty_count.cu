// The mean of an empty group, in whole numbers.
// kind: division by zero
/* launch
sums = np.arange(8, dtype=np.int32)
counts = np.array([1, 2, 3, 4, 0, 6, 7, 8], np.int32)
out = np.zeros(8, np.int32)
cu("means")((1,), (8,), (out, sums, counts))
*/
extern "C" __global__ void means(int* out, const int* sums, const int* counts) {
  int i = threadIdx.x;
  out[i] = sums[i] / counts[i];  // BUG: counts[4] is 0
}
