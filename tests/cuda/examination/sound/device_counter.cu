// A __device__ variable counts over launches: it must begin where the last launch left it, each
// time, in whatever order the threads are run.
// kind: sound
/* launch
out = np.zeros(3, np.int32)
k = cu("number")
for launch in range(3):
    k((2,), (32,), (out, launch))
same(out, [64, 128, 192])
*/
__device__ int counter;
__device__ unsigned arrived;

extern "C" __global__ void number(int* out, int launch) {
  atomicAdd(&counter, 1);
  __threadfence();
  if (atomicInc(&arrived, gridDim.x * blockDim.x - 1) == gridDim.x * blockDim.x - 1)
    out[launch] = atomicAdd(&counter, 0);
}
