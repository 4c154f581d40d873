// 64 KB of static shared memory: a block has 48 KB at most, on every GPU.
// kind: too much shared memory
/* launch
x = ramp(256)
cu("tile")((1,), (256,), (x,))
*/
extern "C" __global__ void tile(float* x) {
  __shared__ float s[128][128];  // BUG: 65,536 bytes
  int t = threadIdx.x;
  for (int i = t; i < 128 * 128; i += 256) s[i / 128][i % 128] = x[t];
  __syncthreads();
  x[t] = s[t / 2][t % 128];
}
