// At the warp's end a shuffle down brings nothing of use; those lanes throw it away.
// kind: sound
/* launch
x, out = ramp(20), np.zeros(20, np.float32)
cu("differences")((1,), (32,), (out, x, 20))
same(out, np.append(np.diff(x), 0))
*/
extern "C" __global__ void differences(float* out, const float* x, int n) {
  int lane = threadIdx.x;
  unsigned here = __ballot_sync(0xffffffff, lane < n);
  if (lane >= n) return;
  float next = __shfl_down_sync(here, x[lane], 1);  // lane 19 asks a lane that is not here
  out[lane] = lane + 1 < n ? next - x[lane] : 0;
}
