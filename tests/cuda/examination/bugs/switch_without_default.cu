// A switch over a mode sets the result; one mode is not in it.
// kind: uninitialised local
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("activate")((1,), (64,), (out, x, 64, 3))
*/
__device__ float activation(float v, int mode) {
  float y;
  switch (mode) {
    case 0: y = v; break;
    case 1: y = fmaxf(v, 0.0f); break;
    case 2: y = tanhf(v); break;
  }
  return y;  // BUG: mode 3 sets nothing
}

extern "C" __global__ void activate(float* out, const float* x, int n, int mode) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = activation(x[i], mode);
}
