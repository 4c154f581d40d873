// A transpose that takes the width for the height: right for squares, past the end for 20 x 12.
// kind: wild write
/* launch
x, y = noise(12, 20), np.zeros((20, 12), np.float32)
cu("transpose")((2, 2), (16, 16), (y, x, 12, 20))
*/
__device__ __forceinline__ int at(int row, int column, int width) { return row * width + column; }

extern "C" __global__ void transpose(float* y, const float* x, int height, int width) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row < height && column < width)
    y[at(column, row, width)] = x[at(row, column, width)];  // BUG: y is height wide
}
