// A mask that names the lower half of the warp, given by all of it.
// kind: wrong shuffle
/* launch
x = ramp(32)
cu("broadcast")((1,), (32,), (x,))
*/
extern "C" __global__ void broadcast(float* x) {
  int lane = threadIdx.x;
  float v = x[lane];
  v = __shfl_sync(0x0000ffff, v, 3);  // BUG: lanes 16 to 31 are not in the mask
  x[lane] = v;
}
