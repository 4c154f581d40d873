// The last five steps of a sum inside one warp, through shared memory, with __syncwarp.
// kind: sound
/* launch
x, out = noise(4 * 128), np.zeros(4, np.float32)
cu("sums")((4,), (128,), (out, x))
same(out, x.reshape(4, 128).sum(1), rtol=1e-5, atol=1e-5)
*/
extern "C" __global__ void sums(float* out, const float* x) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 128 + t];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  __syncthreads();
  if (t < 32) {
    float v = s[t] + s[t + 32];
    for (int d = 16; d > 0; d /= 2) {
      s[t] = v;
      __syncwarp();
      v += s[(t + d) % 32];
      __syncwarp();
    }
    if (t == 0) out[blockIdx.x] = v;
  }
}
