// A loop over tiles with one barrier: a fast warp loads the next tile while others still read.
// kind: missing barrier
/* launch
x, out = noise(64 * 4), np.zeros(64, np.float32)
cu("tiles")((1,), (64,), (out, x, 4))
*/
extern "C" __global__ void tiles(float* out, const float* x, int n_tiles) {
  __shared__ float tile[64];
  int t = threadIdx.x;
  float sum = 0;
  for (int k = 0; k < n_tiles; ++k) {
    tile[t] = x[k * 64 + t];  // BUG: wants a barrier at the end of the loop
    __syncthreads();
    for (int j = 0; j < 64; ++j) sum += tile[j] * (j == t ? 2 : 1);  // BUG
  }
  out[t] = sum;
}
