// Bytes are picked, bits are turned and sums wrap over on purpose: a hash.
// kind: sound
/* launch
x, out = np.arange(256, dtype=np.uint32) * np.uint32(0x01020305), np.zeros(256, np.uint32)
cu("hash")((2,), (128,), (out, x))
swapped = x.byteswap()
k = np.arange(256, dtype=np.uint32) % 32
w = x.astype(np.uint64) << np.uint64(32) | x
turned = ((w << k.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
with np.errstate(over="ignore"):
    same(out, swapped * np.uint32(0x9e3779b1) + turned - np.uint32(7))
*/
extern "C" __global__ void hash(unsigned* out, const unsigned* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned swapped = __byte_perm(x[i], 0, 0x0123);
  unsigned turned = __funnelshift_l(x[i], x[i], i);  // takes the lowest five bits of i
  out[i] = swapped * 0x9e3779b1u + turned - 7u;
}
