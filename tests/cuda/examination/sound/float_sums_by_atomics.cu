// Sums of floats by atomicAdd: the last bits depend on the order, which is no bug of the kernel's.
// kind: sound
/* launch
x, out = noise(64, 33), np.zeros(33, np.float32)
cu("column_sums")((8,), (33, 8), (out, x, 64, 33))
same(out, x.sum(0), rtol=1e-4, atol=1e-4)
*/
extern "C" __global__ void column_sums(float* out, const float* x, int rows, int cols) {
  int j = threadIdx.x, i = blockIdx.x * blockDim.y + threadIdx.y;
  if (i < rows) atomicAdd(&out[j], x[i * cols + j]);
}
