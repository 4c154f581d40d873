// Even and odd blocks wait at barriers on different lines, but each block at one: all its threads.
// kind: sound
/* launch
x, y = ramp(128), np.zeros(128, np.float32)
cu("turn")((4,), (32,), (y, x))
want = x.reshape(4, 32).copy()
want[0::2] = want[0::2, ::-1]
want[1::2] = np.roll(want[1::2], -1, axis=1)
same(y, want.ravel())
*/
extern "C" __global__ void turn(float* y, const float* x) {
  __shared__ float row[32];
  int i = blockIdx.x * 32 + threadIdx.x, other;
  if (blockIdx.x % 2 == 0) {
    row[threadIdx.x] = x[i];
    other = 31 - threadIdx.x;
    __syncthreads();
  } else {
    other = (threadIdx.x + 1) % 32;
    row[threadIdx.x] = x[i];
    __syncthreads();
  }
  y[i] = row[other];
}
