// A mask of 64 columns is built from the int 1.
// kind: shift
/* launch
x, mask = noise(1, 64), np.zeros(1, np.uint64)
cu("signs")((1,), (32,), (mask, x, 64))
*/
extern "C" __global__ void signs(unsigned long long* mask, const float* x, int cols) {
  unsigned long long bits = 0;
  for (int j = threadIdx.x; j < cols; j += 32)
    if (x[j] < 0) bits |= 1u << j;  // BUG: wants 1ull: columns 32 to 63 do not fit into 32 bits
  atomicOr(mask, bits);
}
