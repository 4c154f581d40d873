// A struct of sizes is a kernel's parameter; one with a pointer is passed by value and changed.
// kind: sound
/* launch
x, out = noise(12, 20), np.zeros((20, 12), np.float32)
shape = np.array((12, 20, 2.0), [("rows", np.int32), ("cols", np.int32), ("by", np.float32)])
cu("transpose")((2, 2), (16, 16), (out, x, shape[()]))
same(out, 2 * x.T)
*/
struct Shape {
  int rows, cols;
  float by;
};

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

__device__ void put(Matrix to, Matrix from, int i, int j, float by) {
  to = to.from(j);
  from = from.from(i);
  to.at(0, i) = by * from.at(0, j);
}

extern "C" __global__ void transpose(float* out, float* x, Shape shape) {
  int j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y * blockDim.y + threadIdx.y;
  Matrix to = {out, shape.cols, shape.rows}, from = {x, shape.rows, shape.cols};
  if (i < shape.rows && j < shape.cols) put(to, from, i, j, shape.by);
}
