// A function object takes the thread's index itself and reads one element past the array's end.
// kind: index in a function object
/* launch
x, out = ramp(300), np.zeros(300, np.float32)
cu("difference")((2,), (256,), (out, x, 300))
*/
struct Difference {
  const float* x;
  __device__ float operator()() const {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    return x[i + 1] - x[i];  // BUG: the last i has no right neighbour
  }
};

template <typename F>
__device__ void store(float* out, int n, F f) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = f();
}

extern "C" __global__ void difference(float* out, const float* x, int n) {
  store(out, n, Difference{x});
}
