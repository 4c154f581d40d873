// Many threads add one to the same bin of a histogram in shared memory.
// kind: race
/* launch
keys, out = (np.arange(256) * 7 % 11).astype(np.int32), np.zeros(16, np.int32)
cu("histogram")((1,), (256,), (out, keys))
*/
extern "C" __global__ void histogram(int* out, const int* keys) {
  __shared__ int bins[16];
  int t = threadIdx.x;
  if (t < 16) bins[t] = 0;
  __syncthreads();
  bins[keys[t]]++;  // BUG: two threads read 3, both write 4
  __syncthreads();
  if (t < 16) out[t] = bins[t];
}
