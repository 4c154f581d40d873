// Device functions in a constant table, one of which reads the thread's index by itself.
// kind: sound
/* launch
x, out = noise(96), np.zeros(96, np.float32)
cu("apply")((3,), (32,), (out, x, 96))
i = np.arange(96)
same(out, np.choose(i % 3, [x, -x, i]))
*/
__device__ float keep(float v) { return v; }
__device__ float negate(float v) { return -v; }
__device__ float place(float v) { return (float)(blockIdx.x * blockDim.x + threadIdx.x); }

typedef float (*Op)(float);
__device__ Op ops[3] = {keep, negate, place};

extern "C" __global__ void apply(float* out, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = ops[i % 3](x[i]);
}
