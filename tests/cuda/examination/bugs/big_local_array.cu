// A local array of 4 MB: a thread of a GPU has 512 KB of local memory at most.
// kind: big local variable
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("sort_copy")((1,), (64,), (out, x, 64))
*/
extern "C" __global__ void sort_copy(float* out, const float* x, int n) {
  float copy[1 << 20];  // BUG: 4 MB in each thread
  int t = threadIdx.x;
  for (int j = 0; j < n; ++j) copy[j * 16000] = x[j];
  float best = copy[0];
  for (int j = 0; j <= t; ++j) best = fmaxf(best, copy[j * 16000]);
  out[t] = best;
}
