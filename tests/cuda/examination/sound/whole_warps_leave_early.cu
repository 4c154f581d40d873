// Warps without work return; the last one, half full, goes on with a mask of its own.
// kind: sound
/* launch
x, out = ramp(80), np.zeros(3, np.float32)
cu("warp_sums")((1,), (160,), (out, x, 80))
same(out, [x[:32].sum(), x[32:64].sum(), x[64:].sum()])
*/
extern "C" __global__ void warp_sums(float* out, const float* x, int n) {
  int t = threadIdx.x, lane = t % 32, first = t - lane;
  if (first >= n) return;
  unsigned mask = __ballot_sync(0xffffffff, t < n);
  if (t >= n) return;
  float v = x[t];
  for (int d = 16; d > 0; d /= 2) {
    float other = __shfl_down_sync(mask, v, d);
    if (lane + d < 32 && t + d < n) v += other;
  }
  if (lane == 0) out[t / 32] = v;
}
