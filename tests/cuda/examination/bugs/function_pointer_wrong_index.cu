// The function given as a template argument forgets the block: all blocks write the same elements.
// kind: index in a function object
/* launch
x, out = ramp(256), np.zeros(256, np.float32)
cu("twice")((4,), (64,), (out, x, 256))
*/
__device__ void double_one(float* out, const float* x, int n) {
  int i = threadIdx.x;
  if (i < n) out[i] = 2 * x[i] + blockIdx.x;  // BUG: blockIdx.x * blockDim.x is missing
}

template <void (*body)(float*, const float*, int)>
__device__ void apply(float* out, const float* x, int n) {
  body(out, x, n);
}

extern "C" __global__ void twice(float* out, const float* x, int n) {
  apply<double_one>(out, x, n);
}
