// A table of pointers in device memory that nobody has filled.
// kind: null pointer
/* launch
x = ramp(32)
cu("through_table")((1,), (32,), (x,))
*/
__device__ float* table[4];

extern "C" __global__ void through_table(float* x) {
  int t = threadIdx.x;
  if (t == 0) table[0] = x;
  __syncthreads();
  table[t % 4][t] = 1.0f;  // BUG: entries 1 to 3 are null
}
