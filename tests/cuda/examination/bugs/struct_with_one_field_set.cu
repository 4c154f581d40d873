// Sum and count of a row live in a struct of which only the sum is set to zero.
// kind: uninitialised local
/* launch
x, out = noise(4, 8), np.zeros(4, np.float32)
cu("means")((1,), (4,), (out, x, 8))
*/
struct Mean {
  float sum;
  int count;
};

__device__ void take(Mean& m, float v) {
  m.sum += v;
  m.count += 1;  // BUG: nobody has set it
}

extern "C" __global__ void means(float* out, const float* x, int columns) {
  Mean m;  // BUG: m.count is not set
  m.sum = 0;
  for (int c = 0; c < columns; ++c) take(m, x[threadIdx.x * columns + c]);  // BUG
  out[threadIdx.x] = m.sum / m.count;  // BUG
}
