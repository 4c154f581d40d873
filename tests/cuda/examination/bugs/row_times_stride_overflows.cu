// Row times stride, in 32 bits: 50,000 times 50,000 is over 2^31.
// kind: integer overflow
/* launch
x = ramp(1000)
cu("last_row")((1,), (32,), (x, 50000, 50000))
*/
extern "C" __global__ void last_row(float* x, int row, int stride) {
  int t = threadIdx.x;
  int i = row * stride + t;  // BUG: wraps to a negative number
  if (i < 1000) x[i] = t;  // BUG: which passes the guard
}
