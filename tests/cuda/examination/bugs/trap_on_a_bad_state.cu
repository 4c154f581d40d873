// __trap() ends the kernel of a GPU with an error: here for a block size that it cannot do.
// kind: assert
/* launch
x = ramp(48)
cu("halve")((1,), (48,), (x,))
*/
extern "C" __global__ void halve(float* x) {
  if (blockDim.x & (blockDim.x - 1)) __trap();  // BUG: 48 is no power of two
  x[threadIdx.x] *= 0.5f;
}
