// A fence orders the writes of one thread; it does not wait for another thread.
// kind: race
/* launch
x, out = ramp(128), np.zeros(128, np.float32)
cu("reverse")((1,), (128,), (out, x))
*/
extern "C" __global__ void reverse(float* out, const float* x) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];  // BUG: __threadfence_block() is no __syncthreads()
  __threadfence_block();
  out[t] = s[127 - t];  // BUG
}
