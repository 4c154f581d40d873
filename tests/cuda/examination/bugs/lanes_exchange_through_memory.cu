// Two lanes of a warp swap numbers through shared memory, without a word to each other.
// kind: race in a warp
/* launch
x = ramp(64)
cu("swap_pairs")((2,), (32,), (x,))
*/
extern "C" __global__ void swap_pairs(float* x) {
  __shared__ float s[32];
  int lane = threadIdx.x, i = blockIdx.x * 32 + lane;
  s[lane] = x[i];  // BUG: wants a __syncwarp()
  x[i] = s[lane ^ 1];  // BUG
}
