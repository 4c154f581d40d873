// The upper k bits of a hash: for k = 0 all 32 are shifted out, which C++ does not define.
// kind: shift
/* launch
out = np.zeros(32, np.uint32)
cu("upper")((1,), (32,), (out, 0))
*/
extern "C" __global__ void upper(unsigned* out, int k) {
  unsigned hash = threadIdx.x * 2654435761u;
  out[threadIdx.x] = hash >> (32 - k);  // BUG: 32 - 0
}
