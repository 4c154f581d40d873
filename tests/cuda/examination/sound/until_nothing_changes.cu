// A bubble sort by odd and even pairs that ends when no thread has swapped: a uniform loop.
// kind: sound
/* launch
x = noise(64)
want = np.sort(x)
cu("sort")((1,), (32,), (x,))
same(x, want)
*/
extern "C" __global__ void sort(float* x) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  s[t + 32] = x[t + 32];
  __syncthreads();
  int swapped = 1;
  while (swapped) {  // the same number in all threads
    swapped = 0;
    for (int odd = 0; odd < 2; ++odd) {
      int i = 2 * t + odd;
      bool swap = i + 1 < 64 && s[i] > s[i + 1];
      if (swap) {
        float v = s[i];
        s[i] = s[i + 1];
        s[i + 1] = v;
      }
      swapped |= __syncthreads_or(swap);
    }
  }
  x[t] = s[t];
  x[t + 32] = s[t + 32];
}
