// The rows of a block are counted rounded up, its first row rounded down: neighbours share one.
// kind: race
/* launch
x = noise(10, 8)
cu("scale_rows")((4,), (8,), (x, 10, 8))
*/
struct Share {
  int first, last;
  __device__ Share(int n, int part, int parts)
      : first(part * n / parts), last(first + (n + parts - 1) / parts) {
    if (last > n) last = n;
  }
};

extern "C" __global__ void scale_rows(float* x, int rows, int columns) {
  Share share(rows, blockIdx.x, gridDim.x);
  for (int row = share.first; row < share.last; ++row)
    for (int c = threadIdx.x; c < columns; c += blockDim.x) x[row * columns + c] *= 2;  // BUG
}
