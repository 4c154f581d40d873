// The lanes of a warp meet in a shuffle on two different lines.
// kind: wrong shuffle
/* launch
x = ramp(32)
cu("exchange")((1,), (32,), (x,))
*/
extern "C" __global__ void exchange(float* x) {
  int lane = threadIdx.x;
  float v = x[lane], other = 0;
  if (lane % 2 == 0) {
    if (v > 0) other = __shfl_sync(0x55555555, v, lane + 1);  // BUG: odd lanes are not in the mask
  } else {
    if (v > 0) other = __shfl_sync(0xaaaaaaaa, v, lane - 1);  // BUG
  }
  x[lane] = other;
}
