// A function object that reads the thread's index by itself: no loop over i can be seen here.
// kind: sound
/* launch
x, out = noise(1000), np.full(1000, np.nan, np.float32)
k = cu("scale")
for block in 1000, 250, 96:
    out[:] = np.nan
    k((-(-1000 // block),), (block,), (out, x, 1000))
    # a GPU's fused multiply-add does not round the product, which is below 12 here
    same(out, x * 3 + np.arange(1000) % 7, rtol=2**-23, atol=12 * 2**-24)
*/
struct Index {
  __device__ int operator()() const { return blockIdx.x * blockDim.x + threadIdx.x; }
};

template <typename Where>
struct Scale {
  Where where;
  float by;
  __device__ void operator()(float* out, const float* x, int n) const {
    if (where() < n) out[where()] = x[where()] * by + where() % 7;
  }
};

template <typename F>
__device__ void call(F f, float* out, const float* x, int n) {
  f(out, x, n);
}

extern "C" __global__ void scale(float* out, const float* x, int n) {
  call(Scale<Index>{Index(), 3.0f}, out, x, n);
}
