// Lanes go round as often as their row is long, and a shuffle in the loop asks for all of them.
// kind: wrong shuffle
/* launch
lengths, out = (np.arange(32) % 5).astype(np.int32), np.zeros(32, np.int32)
cu("exchange")((1,), (32,), (out, lengths))
*/
extern "C" __global__ void exchange(int* out, const int* lengths) {
  int sum = threadIdx.x;
  for (int k = 0; k < lengths[threadIdx.x]; ++k)
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);  // BUG: the short rows' lanes have left
  out[threadIdx.x] = sum;
}
