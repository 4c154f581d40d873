// The largest float by a compare-and-swap loop whose first look at the memory is a plain read.
// kind: sound
/* launch
x, top = noise(300), np.full(1, -np.inf, np.float32)
cu("maximum")((3,), (100,), (top, x, 300))
same(top, x.max())
*/
__device__ void atomic_max(float* address, float value) {
  int* bits = (int*)address;
  int old = *bits;  // perhaps out of date: then the swap fails, and says what is there
  while (__int_as_float(old) < value) {
    int seen = atomicCAS(bits, old, __float_as_int(value));
    if (seen == old) break;
    old = seen;
  }
}

extern "C" __global__ void maximum(float* top, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomic_max(top, x[i]);
}
