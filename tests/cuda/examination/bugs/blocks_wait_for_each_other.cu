// Two blocks hand a token to each other; each waits for the other's before it gives its own.
// kind: endless loop
/* launch
token, out = np.zeros(2, np.int32), np.zeros(2, np.float32)
cu("handshake")((2,), (32,), (out, token))
*/
extern "C" __global__ void handshake(float* out, volatile int* token) {
  int mine = blockIdx.x, other = 1 - mine;
  if (threadIdx.x == 0) {
    while (token[other] == 0) {  // BUG: nobody gives first
    }
    __threadfence();
    token[mine] = 1;
    out[mine] = 1.0f;
  }
}
