// Lanes of a warp that hold the same key find each other; the lowest adds for all.
// kind: sound
/* launch
keys, counts = (np.arange(64) * 5 % 7).astype(np.int32), np.zeros(7, np.int32)
cu("count_keys")((1,), (64,), (counts, keys))
same(counts, np.bincount(keys, minlength=7))
*/
extern "C" __global__ void count_keys(int* counts, const int* keys) {
  int lane = threadIdx.x % 32, key = keys[threadIdx.x];
  unsigned same = __match_any_sync(0xffffffff, key);
  if (__ffs(same) - 1 == lane) atomicAdd(&counts[key], __popc(same));
}
