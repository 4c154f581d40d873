// A tile is loaded while the one before is used: one barrier per step is enough for two buffers.
// kind: sound
/* launch
x, out = noise(64 * 9), np.zeros(64, np.float32)
cu("pipeline")((1,), (64,), (out, x, 9))
want = sum(x.reshape(9, 64)[k][::-1] * (k + 1) for k in range(9))
same(out, want, rtol=1e-5, atol=1e-5)
*/
extern "C" __global__ void pipeline(float* out, const float* x, int tiles) {
  __shared__ float buffer[2][64];
  int t = threadIdx.x;
  float sum = 0;
  buffer[0][t] = x[t];
  for (int k = 0; k < tiles; ++k) {
    __syncthreads();  // tile k is there, and nobody reads tile k - 1 any more
    if (k + 1 < tiles) buffer[(k + 1) % 2][t] = x[(k + 1) * 64 + t];
    sum += buffer[k % 2][63 - t] * (k + 1);
  }
  out[t] = sum;
}
