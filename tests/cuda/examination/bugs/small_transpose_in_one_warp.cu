// A warp transposes 32 numbers by way of shared memory and trusts that its lanes move in step.
// kind: race in a warp
/* launch
x, y = ramp(64), np.zeros(64, np.float32)
cu("transpose_4_by_8")((1,), (64,), (y, x))
*/
extern "C" __global__ void transpose_4_by_8(float* y, const float* x) {
  __shared__ float tiles[2][32];
  float* tile = tiles[threadIdx.x / 32];
  int lane = threadIdx.x % 32;
  tile[lane] = x[threadIdx.x];                     // BUG: no __syncwarp() behind it
  y[threadIdx.x] = tile[lane % 4 * 8 + lane / 4];  // BUG
}
