// Thread 0 waits for a flag that nobody ever sets.
// kind: endless loop
/* launch
out, flag = np.zeros(32, np.float32), np.zeros(1, np.int32)
cu("wait")((1,), (32,), (out, flag))
*/
extern "C" __global__ void wait(float* out, volatile int* flag) {
  int t = threadIdx.x;
  if (t == 0) {
    while (*flag == 0) {  // BUG: no thread writes the flag
    }
  }
  out[t] = 1.0f;
}
