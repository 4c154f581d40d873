// The thread's number is kept in eight bits, for a block of 512.
// kind: integer overflow
/* launch
x, out = ramp(512), np.zeros(512, np.float32)
cu("copy")((1,), (512,), (out, x))
*/
extern "C" __global__ void copy(float* out, const float* x) {
  unsigned char t = threadIdx.x;  // BUG: 256 becomes 0
  out[t] = x[threadIdx.x];  // BUG: so thread 256 writes thread 0's element
}
