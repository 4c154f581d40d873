// The place of the largest element is set only where one is found.
// kind: uninitialised local
/* launch
x, out = -ramp(64), np.zeros(64, np.int32)
cu("first_positive")((1,), (64,), (out, x, 64))
*/
extern "C" __global__ void first_positive(int* out, const float* x, int n) {
  int t = threadIdx.x, place;
  for (int j = t; j < n; j += 16) {
    if (x[j] > 0) {
      place = j;
      break;
    }
  }
  out[t] = place;  // BUG: where no element is positive, place was never set
}
