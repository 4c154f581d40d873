// Is there room left? The plain look at the counter says yes to many threads for one place.
// kind: race
/* launch
x, out, count = noise(64), np.zeros(16, np.float32), np.zeros(1, np.int32)
cu("keep_some")((1,), (64,), (out, count, x, 16))
*/
extern "C" __global__ void keep_some(float* out, int* count, const float* x, int room) {
  float v = x[threadIdx.x];
  if (v > 0 && *count < room) {    // BUG: others add to the counter at the same time
    int at = atomicAdd(count, 1);  // BUG: and beyond room
    out[at] = v;
  }
}
