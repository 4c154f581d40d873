// Quicksort whose larger part holds the pivot: equal keys never get fewer.
// kind: recursion
/* launch
x = np.ones(64, np.float32)
cu("sort_rows")((1,), (2,), (x, 32))
*/
__device__ void quicksort(float* x, int n) {
  if (n < 2) return;
  float pivot = x[0];
  int small = 0;
  for (int i = 0; i < n; ++i) {
    if (x[i] < pivot) {
      float t = x[i];
      x[i] = x[small];
      x[small++] = t;
    }
  }
  quicksort(x, small);
  quicksort(x + small, n - small);  // BUG: with no smaller key that is all of it again
}

extern "C" __global__ void sort_rows(float* x, int cols) {
  quicksort(x + threadIdx.x * cols, cols);
}
