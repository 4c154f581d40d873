// A pointer to the middle of a tile is indexed with negative numbers: all inside.
// kind: sound
/* launch
x, out = noise(130), np.zeros(128, np.float32)
cu("stencil")((2,), (64,), (out, x, 128))
same(out, x[:-2] - 2 * x[1:-1] + x[2:], rtol=1e-5, atol=1e-6)
*/
extern "C" __global__ void stencil(float* out, const float* x, int n) {
  __shared__ float tile[66];
  float* centre = tile + 1;
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  if (i >= n) return;
  const float* from = x + 1;
  centre[t] = from[i];
  if (t < 2) centre[t == 0 ? -1 : 64] = from[t == 0 ? i - 1 : i - 1 + 64];
  __syncthreads();
  out[i] = centre[t - 1] - 2 * centre[t] + centre[t + 1];
}
