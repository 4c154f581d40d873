// A struct with an optional array; only half of the code asks whether it is there.
// kind: null pointer
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("norm")((1,), (64,), (out, x, x, 0))
*/
struct Affine {
  const float* weight;
  const float* bias;
  __device__ float operator()(float v, int i) const {
    v = weight ? v * weight[i] : v;
    return v + bias[i];  // BUG: bias may be null as weight may
  }
};

extern "C" __global__ void norm(float* out, const float* x, const float* bias, int has_bias) {
  Affine affine = {nullptr, nullptr};
  if (has_bias) affine.bias = bias;
  int i = threadIdx.x;
  out[i] = affine(x[i] * 0.5f, i);
}
