// Lanes with more and less work stay together: they vote whether to go round, and pad with zeros.
// kind: sound
/* launch
steps, out = (np.arange(32) * 3 % 11).astype(np.int32), np.zeros(32, np.int32)
cu("count_down")((1,), (32,), (out, steps))
want = [sum(max(int(s) - k, 0) for s in steps) for k in range(11)]
same(out, [sum(want)] * 32)
*/
extern "C" __global__ void count_down(int* out, const int* steps) {
  const unsigned all = 0xffffffffu;
  int left = steps[threadIdx.x], sum = 0;
  while (__any_sync(all, left > 0)) {
    int v = left > 0 ? left : 0;
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(all, v, d);
    sum += v;
    --left;
  }
  out[threadIdx.x] = sum;
}
