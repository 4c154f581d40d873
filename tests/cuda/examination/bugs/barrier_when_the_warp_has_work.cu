// A function with a barrier in it is called by the warps that have found something.
// kind: divergent barrier
/* launch
x, out = ramp(128), np.zeros(128, np.float32)
cu("centre")((1,), (128,), (out, x, 50.0))
*/
template <typename T>
__device__ T from_the_first(T mine) {
  __shared__ T first;
  if (threadIdx.x == 0) first = mine;
  __syncthreads();  // BUG: warps without work never come
  return first;
}

extern "C" __global__ void centre(float* out, const float* x, float limit) {
  float v = x[threadIdx.x];
  if (__any_sync(0xffffffffu, v < limit)) v -= from_the_first(v);  // BUG: not by all warps
  out[threadIdx.x] = v;
}
