// A __syncwarp() where the neighbour's number comes from the next warp.
// kind: race in a warp
/* launch
x, out = ramp(128), np.zeros(128, np.float32)
cu("rotate")((1,), (128,), (out, x))
*/
extern "C" __global__ void rotate(float* out, const float* x) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];  // BUG: __syncwarp() makes 32 threads wait, not 128
  __syncwarp();
  out[t] = s[(t + 1) % 128];  // BUG
}
