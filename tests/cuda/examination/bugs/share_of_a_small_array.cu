// Every element's place in a thousandth: a small array's has no elements, and the rest is by 0.
// kind: division by zero
/* launch
x, out = ramp(64), np.zeros(64, np.float32)
cu("shares")((1,), (64,), (out, x, 64))
*/
template <int kParts>
__device__ long long part(long long i, long long n) {
  long long size = n / kParts;
  return i % size;  // BUG: size is 0 where n < kParts
}

extern "C" __global__ void shares(float* out, const float* x, long long n) {
  int i = threadIdx.x;
  out[i] = x[part<1000>(i, n)];
}
