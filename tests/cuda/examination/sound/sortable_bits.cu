// Floats as keys that sort like integers: shifts of signed and 64-bit numbers, all defined.
// kind: sound
/* launch
x, keys, back = noise(64), np.zeros(64, np.uint64), np.zeros(64, np.float32)
cu("pack")((1,), (64,), (keys, back, x))
same(back, x)
same(np.argsort(keys), np.argsort(x))
*/
__device__ unsigned to_key(float v) {
  int bits = __float_as_int(v);
  return (unsigned)(bits ^ ((bits >> 31) | (int)0x80000000u));
}

__device__ float from_key(unsigned key) {
  int bits = (int)key;
  return __int_as_float(bits ^ (~(bits >> 31) | (int)0x80000000u));
}

extern "C" __global__ void pack(unsigned long long* keys, float* back, const float* x) {
  int i = threadIdx.x;
  unsigned long long both = (unsigned long long)to_key(x[i]) << 32 | (unsigned)i;
  keys[i] = both;
  back[i] = from_key((unsigned)(both >> 32));
}
