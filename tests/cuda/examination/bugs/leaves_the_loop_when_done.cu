// Threads iterate to a fixed point; those that are there leave, and the others meet at a barrier.
// kind: divergent barrier
/* launch
x = ramp(64)
cu("newton")((1,), (64,), (x,))
*/
extern "C" __global__ void newton(float* x) {
  __shared__ float shared_x[64];
  float a = x[threadIdx.x], y = a;
  for (int step = 0; step < 30; ++step) {
    float next = 0.5f * (y + a / y);
    if (fabsf(next - y) < 1e-6f * y) break;
    y = next;
    shared_x[threadIdx.x] = y;
    __syncthreads();  // BUG: who has left the loop does not come
  }
  x[threadIdx.x] = y;
}
