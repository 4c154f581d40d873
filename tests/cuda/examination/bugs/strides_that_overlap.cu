// A walk over the data is a function object; its step forgets that there is more than one block.
// kind: index in a function object
/* launch
x, out = ramp(512), np.zeros(512, np.float32)
cu("accumulate")((2,), (128,), (out, x, 512))
*/
struct Walk {
  int at;
  __device__ Walk() : at(blockIdx.x * blockDim.x + threadIdx.x) {}
  __device__ Walk& operator++() {
    at += blockDim.x;
    return *this;
  }
  __device__ operator int() const { return at; }
};

template <typename It, typename Body>
__device__ void walk(int n, Body body) {
  for (It i; i < n; ++i) body(i);
}

struct Add {
  float* out;
  const float* x;
  __device__ void operator()(int i) const {
    out[i] += x[i];  // BUG: block 1's elements are also block 0's
  }
};

extern "C" __global__ void accumulate(float* out, const float* x, int n) {
  walk<Walk>(n, Add{out, x});
}
