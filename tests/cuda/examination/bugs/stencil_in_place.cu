// A stencil over several blocks that writes the array it reads.
// kind: race
/* launch
x = noise(300)
cu("smooth")((5,), (64,), (x, 300))
*/
extern "C" __global__ void smooth(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= 1 && i < n - 1) x[i] = (x[i - 1] + x[i] + x[i + 1]) / 3;  // BUG: needs a second array
}
