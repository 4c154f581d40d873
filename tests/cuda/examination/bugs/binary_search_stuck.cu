// A binary search whose lower end does not move past the middle: some keys are never done.
// kind: endless loop
/* launch
keys, wanted, out = ramp(64), ramp(64) + np.float32(0.5), np.zeros(64, np.int32)
cu("search")((1,), (64,), (out, keys, wanted, 64))
*/
__device__ int upper(const float* keys, int n, float key) {
  int low = 0, high = n;
  while (low < high) {  // BUG: low = (low + high) / 2 is low itself where they are neighbours
    int middle = (low + high) / 2;
    if (keys[middle] < key)
      low = middle;
    else
      high = middle;
  }
  return low;
}

extern "C" __global__ void search(int* out, const float* keys, const float* wanted, int n) {
  int i = threadIdx.x;
  if (i < n) out[i] = upper(keys, n, wanted[i]);
}
