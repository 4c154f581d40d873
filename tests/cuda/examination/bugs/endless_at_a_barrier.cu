// All threads go round a loop with a barrier in it; the number that should end it is never written.
// kind: endless loop
/* launch
x = ramp(64)
cu("relax")((1,), (64,), (x,))
*/
extern "C" __global__ void relax(float* x) {
  __shared__ int busy;
  int t = threadIdx.x;
  if (t == 0) busy = 1;
  __syncthreads();
  while (busy) {  // BUG: busy stays 1
    float left = t > 0 ? x[t - 1] : x[t];
    __syncthreads();
    x[t] = 0.5f * (x[t] + left);
    __syncthreads();
  }
}
