// A bin is computed from the data; 0/0 gives nan, and as an int that is no bin.
// kind: wild write
/* launch
x, bins = np.zeros(32, np.float32), np.zeros(16, np.int32)
cu("bins")((1,), (32,), (bins, x, np.float32(0)))
*/
extern "C" __global__ void bins(int* bins, const float* x, float range) {
  float part = x[threadIdx.x] / range;
  int bin = (int)(part * 16);
  if (bin > 15) bin = 15;
  atomicAdd(&bins[bin], 1);  // BUG: (int)nan is the smallest int there is
}
