// A block normalises row after row; the mean of the next row is written while this one is read.
// kind: missing barrier
/* launch
x, out = noise(6, 64), np.zeros((6, 64), np.float32)
cu("centre")((1,), (64,), (out, x, 6))
*/
__device__ float block_sum(float v) {
  __shared__ float parts[2];
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;  // BUG: parts may still be read
  __syncthreads();
  return parts[0] + parts[1];  // BUG: no barrier behind this
}

extern "C" __global__ void centre(float* out, const float* x, int rows) {
  for (int r = 0; r < rows; ++r) {
    float v = x[r * 64 + threadIdx.x];
    out[r * 64 + threadIdx.x] = v - block_sum(v) / 64;
  }
}
