// Each thread walks a pointer over the array and ends past its end, where it is compared only.
// kind: sound
/* launch
x, out = ramp(1000), np.zeros(64, np.float32)
cu("sums")((2,), (32,), (out, x, 1000))
same(out, [x[i::64].sum() for i in range(64)], rtol=1e-5)
*/
extern "C" __global__ void sums(float* out, const float* x, int n) {
  const float* const end = x + n;
  int stride = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (const float* p = x + i; p < end; p += stride) sum += *p;
  *(out + i) = sum;
}
