// A sorting network in shared memory: in each step a pair belongs to its lower thread alone.
// kind: sound
/* launch
x = noise(256)
want = np.sort(x)
cu("sort")((1,), (256,), (x,))
same(x, want)
*/
extern "C" __global__ void sort(float* x) {
  __shared__ float s[256];
  int t = threadIdx.x;
  s[t] = x[t];
  for (int size = 2; size <= 256; size <<= 1) {
    for (int stride = size >> 1; stride > 0; stride >>= 1) {
      __syncthreads();
      int other = t ^ stride;
      if (other > t) {
        bool up = (t & size) == 0;
        float a = s[t], b = s[other];
        if ((a > b) == up) s[t] = b, s[other] = a;
      }
    }
  }
  __syncthreads();
  x[t] = s[t];
}
