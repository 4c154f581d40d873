// A function returns a lambda that holds its local array by reference.
// kind: stale pointer
/* launch
out = np.zeros(4, np.float32)
cu("powers")((1,), (4,), (out,))
*/
__device__ auto powers_of(float factor) {
  float local[2] = {factor, factor * factor};
  return [&local](int k) { return local[k]; };  // BUG: local ends here
}

extern "C" __global__ void powers(float* out) {
  auto f = powers_of(threadIdx.x + 2.0f);
  out[threadIdx.x] = f(threadIdx.x % 2);  // BUG: f's array is gone
}
