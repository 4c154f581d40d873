// Positive numbers move together, their places counted by a ballot: no atomics, one order.
// kind: sound
/* launch
x, out, n = noise(77), np.zeros(77, np.float32), np.zeros(1, np.int32)
cu("positive")((1,), (32,), (out, n, x, 77))
keep = x[x > 0]
same(n, [len(keep)])
same(out[:len(keep)], keep)
*/
extern "C" __global__ void positive(float* out, int* n_out, const float* x, int n) {
  int lane = threadIdx.x, found = 0;
  for (int start = 0; start < n; start += 32) {
    int i = start + lane;
    bool good = i < n && x[i] > 0.0f;
    unsigned votes = __ballot_sync(0xffffffffu, good);
    if (good) out[found + __popc(votes & ((1u << lane) - 1))] = x[i];
    found += __popc(votes);
  }
  if (lane == 0) *n_out = found;
}
