// A tree sum whose barrier stands in the call operator of an object.
// kind: sound
/* launch
x, out = ramp(256), np.zeros(2, np.float32)
cu("sums")((2,), (128,), (out, x))
same(out, x.reshape(2, 128).sum(1))
*/
struct Meet {
  __device__ void operator()() const { __syncthreads(); }
};

template <typename Barrier>
__device__ float block_sum(float mine, float* s, Barrier barrier) {
  s[threadIdx.x] = mine;
  barrier();
  for (int d = blockDim.x / 2; d > 0; d /= 2) {
    if (threadIdx.x < d) s[threadIdx.x] += s[threadIdx.x + d];
    barrier();
  }
  return s[0];
}

extern "C" __global__ void sums(float* out, const float* x) {
  __shared__ float s[128];
  float sum = block_sum(x[blockIdx.x * blockDim.x + threadIdx.x], s, Meet());
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
