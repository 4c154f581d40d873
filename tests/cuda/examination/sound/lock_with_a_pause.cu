// A lock that one thread of each block takes, with a pause between tries and fences on both sides.
// kind: sound
/* launch
stats, lock, x = np.array([0, 1e9, -1e9], np.float32), np.zeros(1, np.int32), noise(16)
cu("statistics")((16,), (32,), (stats, lock, x))
same(stats, [16, x.min(), x.max()])
*/
extern "C" __global__ void statistics(volatile float* stats, int* lock, const float* x) {
  if (threadIdx.x != 0) return;
  float v = x[blockIdx.x];
  long long start = clock64();
  while (atomicCAS(lock, 0, 1) != 0) __nanosleep(100);
  __threadfence();
  stats[0] = stats[0] + (clock64() >= start ? 1 : 0);
  stats[1] = fminf(stats[1], v);
  stats[2] = fmaxf(stats[2], v);
  __threadfence();
  atomicExch(lock, 0);
}
