// One atomic for all threads that are in the branch: they find each other as a coalesced group.
// kind: sound
/* launch
x, out, count = noise(200), np.zeros(200, np.float32), np.zeros(1, np.int32)
cu("keep_large")((2,), (100,), (out, count, x, 200))
same(count, (x > 0.5).sum())
same(np.sort(out[:count[0]]), np.sort(x[x > 0.5]))
*/
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__device__ int next_place(int* count) {
  cg::coalesced_group here = cg::coalesced_threads();
  int first = 0;
  if (here.thread_rank() == 0) first = atomicAdd(count, here.size());
  return here.shfl(first, 0) + here.thread_rank();
}

extern "C" __global__ void keep_large(float* out, int* count, const float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0.5f) out[next_place(count)] = x[i];
}
