// Three bits for each lane of a warp in 64 bits: they end with lane 20.
// kind: shift
/* launch
out = np.zeros(32, np.uint64)
cu("pack")((1,), (32,), (out,))
*/
extern "C" __global__ void pack(unsigned long long* out) {
  unsigned lane = threadIdx.x;
  out[lane] = (unsigned long long)(lane & 7) << (3 * lane);  // BUG: by up to 93
}
