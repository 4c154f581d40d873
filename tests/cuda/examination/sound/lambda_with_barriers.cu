// A lambda captures a shared array by reference and waits at a barrier inside a template.
// kind: sound
/* launch
x, out = noise(4, 64), np.zeros(4, np.float32)
cu("row_max")((4,), (64,), (out, x))
same(out, x.max(axis=1))
*/
template <typename F>
__device__ void halving(int n, F step) {
  for (int half = n / 2; half > 0; half /= 2) step(half);
}

extern "C" __global__ void row_max(float* out, const float* x) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * blockDim.x + t];
  __syncthreads();
  halving(64, [&](int half) {
    if (t < half) s[t] = fmaxf(s[t], s[t + half]);
    __syncthreads();
  });
  if (t == 0) out[blockIdx.x] = s[0];
}
