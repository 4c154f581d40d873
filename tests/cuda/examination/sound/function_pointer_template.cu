// A row sum, its loop in a function given as a template argument, which reads threadIdx itself.
// kind: sound
/* launch
x, out = ramp(64 * 40).reshape(64, 40), np.zeros(64, np.float32)
cu("rows<abs_of>")((4,), (16,), (out, x, 64, 40))
same(out, x.sum(1), rtol=1e-6)
*/
__device__ float abs_of(const float* row, int cols) {
  float sum = 0;
  for (int j = 0; j < cols; ++j) sum += fabsf(row[(j + threadIdx.x) % cols]);
  return sum;
}

template <float (*term)(const float*, int)>
__global__ void rows(float* out, const float* x, int n, int cols) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < n) out[row] = term(x + row * cols, cols);
}
