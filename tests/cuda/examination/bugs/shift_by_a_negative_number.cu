// The exponent's difference is taken the wrong way round.
// kind: shift
/* launch
exponents, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
cu("align_to")((1,), (32,), (out, exponents, 16))
*/
extern "C" __global__ void align_to(int* out, const int* exponents, int target) {
  int t = threadIdx.x;
  out[t] = 1024 >> (target - exponents[t]);  // BUG: negative from exponent 17 on
}
