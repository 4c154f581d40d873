// A bit per thread, in 32 bits, by a block of 64 threads.
// kind: shift
/* launch
bits = np.zeros(64, np.uint32)
cu("bit_of")((1,), (64,), (bits,))
*/
extern "C" __global__ void bit_of(unsigned* bits) {
  int t = threadIdx.x;
  bits[t] = 1u << t;  // BUG: t reaches 63
}
