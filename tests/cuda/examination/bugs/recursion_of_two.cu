// Two functions that call each other: odd numbers never come to 0.
// kind: recursion
/* launch
out = np.zeros(32, np.int32)
cu("parity")((1,), (32,), (out,))
*/
__device__ int is_odd(int n, int* depth);

__device__ __noinline__ int is_even(int n, int* depth) {
  volatile int here[4] = {n, n, n, n};
  if (here[0] == 0) return 1;
  ++*depth;
  return is_odd(here[1] - 2, depth) + here[2] * 0;  // BUG: steps of two jump over 0
}

__device__ __noinline__ int is_odd(int n, int* depth) {
  volatile int here[4] = {n, n, n, n};
  if (here[0] == 0) return 0;
  ++*depth;
  return is_even(here[1], depth) + here[2] * 0;
}

extern "C" __global__ void parity(int* out) {
  int depth = 0;
  out[threadIdx.x] = is_even(threadIdx.x, &depth);
}
