// A pointer to a row of a shared tile walks one element too far: the last row ends the tile.
// kind: overrun through a pointer
/* launch
x, out = noise(8, 8), np.zeros((8, 8), np.float32)
cu("differences")((1,), (8, 8), (out, x))
*/
__device__ float ahead(const float* row, int j) {
  return row[j + 1] - row[j];  // BUG: for the last j there is none ahead
}

extern "C" __global__ void differences(float* out, const float* x) {
  __shared__ float tile[8][8];
  int i = threadIdx.y, j = threadIdx.x;
  tile[i][j] = x[i * 8 + j];
  __syncthreads();
  out[i * 8 + j] = ahead(tile[i], j);
}
