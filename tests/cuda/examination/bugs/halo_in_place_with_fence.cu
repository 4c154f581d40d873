// Blocks smooth their part in place and read the edges of others; a fence does not help here.
// kind: race
/* launch
x = noise(256)
cu("smooth")((4,), (64,), (x, 256))
*/
extern "C" __global__ void smooth(float* x, int n) {
  __shared__ float part[66];
  int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x + 1;
  part[t] = x[i];
  if (t == 1) part[0] = i > 0 ? x[i - 1] : 0.0f;  // BUG: the block before may have written it
  if (t == 64) part[65] = i + 1 < n ? x[i + 1] : 0.0f;  // BUG: and the block behind this
  __syncthreads();
  __threadfence();
  x[i] = 0.25f * part[t - 1] + 0.5f * part[t] + 0.25f * part[t + 1];  // BUG: is being read there
}
