// The first launch keeps the address of a local variable; the second uses it.
// kind: stale pointer
/* launch
out = np.zeros(32, np.float32)
k = cu("step")
k((1,), (32,), (out, 0))
k((1,), (32,), (out, 1))
*/
__device__ float* kept;

extern "C" __global__ void step(float* out, int launch) {
  float mine[4] = {1, 2, 3, 4};
  mine[threadIdx.x % 4] = threadIdx.x;
  if (launch == 0) {
    if (threadIdx.x == 5) kept = mine;
    out[threadIdx.x] = mine[0];
  } else {
    out[threadIdx.x] = kept[threadIdx.x % 4] + mine[1];  // BUG: that thread ended long ago
  }
}
