// Dynamic shared memory cut into doubles, floats and bytes, the widest first.
// kind: sound
/* launch
x, out = ramp(48), np.zeros(48, np.float64)
cu("three")((1,), (48,), (out, x), shared_mem=48 * (8 + 4 + 1))
y = x.astype(np.float64)
same(out, y[::-1] / 2 + np.roll(y, -1) * (np.arange(48) % 3 == 0))
*/
extern "C" __global__ void three(double* out, const float* x) {
  extern __shared__ __align__(8) unsigned char memory[];
  int t = threadIdx.x, n = blockDim.x;
  double* halves = reinterpret_cast<double*>(memory);
  float* numbers = reinterpret_cast<float*>(halves + n);
  unsigned char* marks = reinterpret_cast<unsigned char*>(numbers + n);
  halves[t] = x[t] / 2.0;
  numbers[t] = x[t];
  marks[t] = t % 3 == 0;
  __syncthreads();
  out[t] = halves[n - 1 - t] + (marks[t] ? numbers[(t + 1) % n] : 0.0f);
}
