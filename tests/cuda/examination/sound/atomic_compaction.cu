// The positive elements, moved together: their order depends on who comes first, by design.
// kind: sound
/* launch
x = noise(500)
out, count = np.zeros(500, np.float32), np.zeros(1, np.int32)
cu("keep_positive")((4,), (128,), (out, count, x, 500))
same(count, [(x > 0).sum()])
same(np.sort(out[:count[0]]), np.sort(x[x > 0]))
*/
extern "C" __global__ void keep_positive(float* out, int* count, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0) {
    int place = atomicAdd(count, 1);
    out[place] = x[i];
  }
}
