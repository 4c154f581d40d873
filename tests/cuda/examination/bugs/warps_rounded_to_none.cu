// Each warp of 64, as on another maker's cards, takes a share: a block of 32 has none of them.
// kind: division by zero
/* launch
x, out = ramp(100), np.zeros(32, np.float32)
cu("shares")((1,), (32,), (out, x, 100))
*/
template <int width>
__device__ int share(int n) {
  int warps = blockDim.x / width;
  return (n + warps - 1) / warps;  // BUG: 32 / 64 warps
}

extern "C" __global__ void shares(float* out, const float* x, int n) {
  int each = share<64>(n), start = threadIdx.x / 64 * each;
  float sum = 0;
  for (int i = start; i < min(start + each, n); ++i) sum += x[i];
  out[threadIdx.x] = sum;
}
