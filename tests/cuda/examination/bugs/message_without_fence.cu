// Block 0 leaves a message and raises a flag; block 1 sees the flag, and perhaps no message.
// kind: missing fence
/* launch
box, flag, out = np.zeros(4, np.float32), np.zeros(1, np.int32), np.zeros(4, np.float32)
cu("send")((2,), (1,), (out, box, flag))
*/
extern "C" __global__ void send(float* out, float* box, int* flag) {
  if (blockIdx.x == 0) {
    for (int k = 0; k < 4; ++k) box[k] = k + 1;  // BUG: no fence between message and flag
    atomicExch(flag, 1);
  } else {
    while (atomicAdd(flag, 0) == 0) {
    }
    for (int k = 0; k < 4; ++k) out[k] = box[k];  // BUG: and none between flag and message
  }
}
