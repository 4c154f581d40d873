// No function's array is over the limit, but each of eight nested calls holds 100,000 bytes.
// kind: big local variable
/* launch
out = np.zeros(32, np.float32)
cu("nested")((1,), (32,), (out, 8))
*/
__device__ __noinline__ float level(int depth, float v) {
  volatile float row[25000];  // BUG: 8 levels of it are 800 KB
  row[depth] = v;
  row[24999 - depth] = v + 1;
  if (depth == 0) return row[0] + row[24999];
  return level(depth - 1, v + 1) + row[depth] + row[24999 - depth];
}

extern "C" __global__ void nested(float* out, int depth) {
  out[threadIdx.x] = level(depth, threadIdx.x);
}
