// A while loop whose step is missing on one of its ways.
// kind: endless loop
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("count_down")((1,), (64,), (out, x, 64))
*/
extern "C" __global__ void count_down(float* out, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int left = i;
  while (left > 0) {  // BUG: at an odd number nothing is taken away
    if (left % 2 == 0) left -= 1;
    atomicAdd(&out[i], 1.0f);
  }
}
