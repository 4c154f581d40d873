// A struct of a pointer, sizes and numbers is passed by value between functions, and changed there.
// kind: sound
/* launch
x, out = noise(12, 20), np.zeros((20, 12), np.float32)
cu("transpose")((2, 2), (16, 16), (out, x, 12, 20))
same(out, x.T)
*/
struct Matrix {
  float* data;
  int rows, cols;
  __device__ float& at(int i, int j) { return data[i * cols + j]; }
  __device__ Matrix from(int row) const {
    Matrix m = *this;
    m.data += row * cols;
    m.rows -= row;
    return m;
  }
};

__device__ void put(Matrix to, Matrix from, int i, int j) {
  to = to.from(j);
  from = from.from(i);
  to.at(0, i) = from.at(0, j);
}

extern "C" __global__ void transpose(float* out, float* x, int rows, int cols) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
  if (i < rows && j < cols) put({out, cols, rows}, {x, rows, cols}, i, j);
}
