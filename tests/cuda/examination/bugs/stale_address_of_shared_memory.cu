// The address of a block's shared memory is kept in a __device__ variable for the next launch.
// kind: stale pointer
/* launch
out = np.zeros(32, np.float32)
k = cu("share")
k((1,), (32,), (out, 0))
k((1,), (32,), (out, 1))
*/
__device__ float* kept;

extern "C" __global__ void share(float* out, int launch) {
  __shared__ float s[32];
  int t = threadIdx.x;
  s[t] = t;
  __syncthreads();
  if (launch == 0) {
    if (t == 0) kept = s;
  } else {
    out[t] = kept[31 - t];  // BUG: the block whose memory this was has ended
  }
}
