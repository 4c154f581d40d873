// A __device__ array of 32 is used as if it had an element for every thread of the grid.
// kind: overrun through a pointer
/* launch
x = ramp(64)
cu("keep")((2,), (32,), (x,))
*/
__device__ float kept[32];
__device__ float others[64];

__device__ void put(float* where, int i, float v) { where[i] = v; }  // BUG: i reaches 63

extern "C" __global__ void keep(float* x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  others[i] = 0;
  put(kept, i, x[i]);
  x[i] = others[i];
}
