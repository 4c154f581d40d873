// Whole numbers are read where they lie in a file's bytes: behind a header of three.
// kind: misaligned access
/* launch
text, out = np.arange(64, dtype=np.uint8), np.zeros(8, np.int32)
cu("numbers")((1,), (8,), (out, text))
*/
extern "C" __global__ void numbers(int* out, const unsigned char* text) {
  const int* from = reinterpret_cast<const int*>(text + 3);
  out[threadIdx.x] = from[threadIdx.x];  // BUG: not a multiple of 4
}
